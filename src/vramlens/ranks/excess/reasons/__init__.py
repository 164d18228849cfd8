"""Reasons that are not in the lines that hold more.

larger_part: a larger part of a model, or of the data that a rank keeps.
divided_layers: a part of a layer with more parameters than the peers' parts.
wider_numbers: numbers of 32 bits, where peers have 16.
wider_parameters: parameters of 32 bits, likewise.
more_states: more optimizer state for as many parameters.
not_resharded: parameters that FSDP gathered, and that a rank keeps.
whole_copy: a copy of all weights, where ranks divide them.
unfrozen: parameters that a rank trains, and its peers keep frozen.
"""
