"""Reasons that are not in the lines that hold more.

unfrozen: parameters that a rank trains, and its peers keep frozen.
"""
