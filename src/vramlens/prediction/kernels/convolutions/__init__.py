"""Convolutions: what cuDNN asks for to run one.

convolution: one convolution, or the gradients of one, and the bytes of its workspaces.
filled_up_copies: copies with their channels filled up.
pointwise: the gradient of a 1 x 1 weight.
second_gradients: the gradient of a weight, derived once more.
transforms: Fourier transforms, and what is made of them.
without_tf32: what is asked for in float32 where TF32 is not allowed.
workspaces: what it asks for, in order, with its workspaces.
written_results: results in 32 bits that need no copy of their own.
"""
