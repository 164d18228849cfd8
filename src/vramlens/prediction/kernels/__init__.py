"""Kernels: what CUDA's kernels ask of the allocator beside their results.

attention: which attention kernel runs, and what it keeps.
convolutions: cuDNN's workspaces.
kernel_requests: all rules of one card, by operator.
recurrent: cuDNN's recurrent layers and their reserve.
reductions: buffers for partial sums.
synchronized_norm: batch normalization over ranks.
casts: copies of another type that a reduction or a running sum makes of its input first.
flexible_attention: ``flex_attention``: as its compiled kernel, which never makes the scores.
running_formula: the formula of autograd's that runs now.
"""
