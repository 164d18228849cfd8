"""Kernels: what CUDA's kernels ask of the allocator beside their results.

attention: which attention kernel runs, and what it keeps.
contiguous_inputs: copies of inputs that lie apart.
convolutions: cuDNN's workspaces.
ctc_loss: CTC loss, with lengths on the host.
encoder_layers: the fast path of transformer layers in evaluation.
enlarged_images: how enlarged images lie, and copies of their gradients.
factorizations: solved systems.
gpu_only_results: operators whose shapes PyTorch knows on a GPU only.
host_copies: copies between host and card.
kernel_requests: all rules of one card, by operator.
recurrent: cuDNN's recurrent layers and their reserve.
reductions: buffers for partial sums.
casts: copies of another type that a reduction or a running sum makes of its input first.
flexible_attention: ``flex_attention``: as its compiled kernel, which never makes the scores.
scratch_memory: what sorting, shuffling, Fourier transforms and eigenvalues hold meanwhile.
running_formula: the formula of autograd's that runs now.
"""
