"""Tensors: shapes instead of values, and the few values that decide shapes.

asked_values: the lines that were given a value that was made up.
counts: lengths that nobody knows, taken as the longest.
ended_sequences: masks that ask whether all sequences of a generation have ended.
even_choices: choices that values decide, taken as even.
fused_results: results that a compiled program never makes.
host_results: results of operators that PyTorch has no shapes for.
known_values: which tensors' values are known.
largest_results: what is taken for results whose size values decide.
operator_schema: an operator's properties, as its schema has them.
origins: tensors that were computed alike.
random_numbers: the host's go on as in a run; the card's are a sequence of their own.
remembered_shapes: the shapes that operators returned before.
sampled_proposals: the proposals of a detector that are taken for objects.
shapes: the mode in which operators run with shapes.
sparse: gradients with few rows, and matrices of which most is zero.
two_numbers: large tensors of two numbers, as attention masks.
written_views: views that were written in place, whose gradients are copied.
"""
