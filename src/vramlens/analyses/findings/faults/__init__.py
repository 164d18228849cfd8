"""Faults in the code that ran out of memory: each is mended by an edit of a few lines.

double_precision: numbers of twice the usual width.
expressions: expressions that compute more than is used.
frozen_in_optimizer: what an optimizer keeps for parameters that are not trained.
graphs: graphs that keep more than the backward pass needs.
holders: objects, hooks and calls that keep what the program is done with.
idle_experts: experts that compute rows which nobody sends them.
kept: what the program is done with, or need not have on the GPU.
larger_inputs: a pass on inputs several times as large as those before it.
lbfgs_pairs: vectors that L-BFGS keeps of its iterations.
models: models and optimizers that are there twice, or whose work is over.
nested_wrapper: copies of copies, by a wrapper of a wrapper.
optimizer_list: temporaries that an optimizer makes for all parameters at once, PyTorch's or one's own.
padded_columns: columns of a batch that are padding in every row.
repeated_masks: masks of attention that every layer builds anew.
requests: requests that it need not make.
uneven_rows: padding of all rows to one that is far longer.
unnamed_entries: those of a store that the recording has no name for.
unlabeled_positions: logits of positions that have no label.
unstepped_parameters: gradients of what no optimizer changes, and the activations for them.
vectorized_transform: what vmap and Jacobians compute all at once.
wide_weights: weights in float32 that nothing trains.
written_out: matrices of attention that need not be written out.
"""
