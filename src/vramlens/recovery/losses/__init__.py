"""Losses: what the user's loss function gives, and what it is made of.

chunked_loss: cross entropy in chunks of rows.
loss_calls: the calls of a loss function: cross entropies and dropout.
loss_form: the code and plain values that a check of a loss holds for.
loss_graph: the linear top of a loss, read from autograd's graph.
part_losses: a loss's sum and count, and the weights of parts.
"""
