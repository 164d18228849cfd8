"""Tensors: shapes instead of values, and the few values that decide shapes.

even_choices: choices that values decide, taken as even.
known_values: which tensors' values are known.
operator_schema: an operator's properties, as its schema has them.
shapes: the mode in which operators run with shapes.
"""
