"""Training: one step of the user's training, run whole or in parts, and undone when it fails.

batch_attempts: a batch's forward and backward, whole or in parts.
early_optimizer_state: an optimizer's state, made before its first step.
optimizer_values: the values that a step changes, and their backup.
recompute: activations made again in the backward, or kept on the host.
rollback: buffers, gradients and random numbers as they were.
training_state: all of that, kept while steps are tried.
"""
