"""Excuses: the reasons why what grows may be no leak, and whether they hold.

container_bounds: bounds of the container itself.
data_in_use: what the program goes on reading.
key_types: the keys that a removal asks for, by their type.
lookalikes: rules by which growth ends by itself.
missed_removals: removals that run and take nothing.
numbered_keys: keys that are numbers, and what they say is missing.
removal_calls: the calls of functions that take away, and with which key.
removals: statements that take away, and whether they keep up with growth.
"""
