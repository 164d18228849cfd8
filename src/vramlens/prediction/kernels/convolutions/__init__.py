"""Convolutions: what cuDNN asks for to run one.

convolution: one convolution, or the gradients of one, and the bytes of its workspaces.
filled_up_copies: copies with their channels filled up.
narrow_sums: a weight's partial sums, for images of few channels.
pointwise: what 1 x 1 kernels ask for where channels lie first.
pointwise_sums: a 1 x 1 weight's partial sums where channels lie last.
second_gradients: the gradient of a weight, derived once more.
tiled_sums: a weight's partial sums in TF32.
tiled_sums_of_halves: the same in 16 bits.
transforms: Fourier transforms, and what is made of them.
tried_transforms: Fourier transforms among the plans that cuDNN tries.
weight_gradients: what the gradient of a weight asks for.
weight_sizes: the sizes that decide how it is summed.
without_tf32: what is asked for in float32 where TF32 is not allowed.
workspaces: what it asks for, in order, with its workspaces.
written_results: results in 32 bits that need no copy of their own.
"""
