"""Findings: one file a claim about memory, each with its bytes, place, evidence and fix.

table: one row a finding, in the order in which they are looked for.
optimizer_rows: the rows about what optimizers keep.
ranking: which findings matter, and which comes first.
faults: those in the code that ran out of memory, each mended by an edit of a few lines.
failure_remedies: what a failure's cause and wall call for.
growing_memory: leaks, what an evaluation gathers, and growth that only samples show.
eval_with_grad, unused_graph: evaluation that keeps a graph.
gradients: gradients that stay through the next forward pass.
copies: a second copy of the weights.
first_step: what the first optimizer step will need.
buffers: what lives for one operation only.
stranded: caches of idle streams, and private pools.
unused_reserve: what was reserved beyond the peak's need.
other_devices: memory on a device that was perhaps not meant.
usage: activations, and optimizer state.
largest_line: the line that holds most.
"""
