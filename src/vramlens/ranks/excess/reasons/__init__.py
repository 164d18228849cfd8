"""Reasons that are not in the lines that hold more.

larger_part: a larger part of a model, or of the data that a rank keeps.
unfrozen: parameters that a rank trains, and its peers keep frozen.
"""
