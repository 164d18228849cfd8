"""Kernels: what CUDA's kernels ask of the allocator beside their results.

attention: which attention kernel runs, what it keeps and works in.
convolutions: cuDNN's convolutions and their workspaces.
ctc_loss: CTC loss, with lengths on the host.
encoder_layers: the fast path of transformer layers in evaluation.
flexible_attention: ``flex_attention``: as its compiled kernel, which never makes the scores.
formulas: gradients of products, as a run takes them.
gpu_only_results: operators whose shapes PyTorch knows on a GPU only.
image_layout: where the channels of images lie.
kernel_call: one operator that ran on the card, and how what its kernel asks for is written down.
kernel_requests: all rules of one card, by operator.
linear_algebra: products, solved systems and factorizations.
recurrent: cuDNN's recurrent layers.
recurrent_sizes: what they keep, and work in.
reductions: buffers for partial sums.
scratch_memory: copies of inputs, and what single kernels work in.
sorting: what sorts on the device, and gradients of what was looked up.
"""
