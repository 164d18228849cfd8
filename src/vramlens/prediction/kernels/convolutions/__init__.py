"""Convolutions: what cuDNN asks for to run one.

convolution: one convolution, or the gradients of one, and the bytes of its workspaces.
workspaces: what it asks for, in order, with its workspaces.
"""
