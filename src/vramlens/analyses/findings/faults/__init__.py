"""Faults in the code that ran out of memory: each is mended by an edit of a few lines, and the run
lives.

large_request: a request that no limit would have held.
optimizer_list: temporaries that an optimizer makes for all parameters at once.
unused_cache: keys and values for text that nobody generates.
concatenated_copy: all gradients or parameters in one tensor.
kept_from_start: data that was put on the GPU before the first step.
kept_in_store: a list, dict or cache that keeps something of each turn.
kept_by_calls: calls that have ended, and whose variables are kept.
retained_graph: a graph that goes on through several backward passes.
solver_steps: what a solver of differential equations keeps of all its steps.
larger_inputs: a pass on inputs several times as large as those before it.
unstepped_parameters: gradients of what no optimizer has, and the activations for them.
written_out: matrices of attention that need not be written out.
double_precision: numbers of twice the usual width.
vectorized_transform: what vmap and Jacobians compute all at once.
dense_embedding_gradient: gradients as large as an embedding's table.
"""
