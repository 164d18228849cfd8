"""Holder: the chain from a root to a tensor, and the statement that keeps it.

call_fix: fixes that name another line than the one that keeps.
chain: how a root holds a tensor, in words.
filed_objects: timers, loggers and others that a library files in a table of its own.
keeper: the statement that keeps.
keeper_position: the link of a chain that keeps.
leak_class: the class of a leak.
kept_value, leak_fix, object_fix, removal_fix: its fix.
linked_fields: fields that the call of a class sets.
owner: the name of what keeps.
library_part: a private part of a library's object.
registrations: calls that hand over a function.
route: a chain as names alone, to find it again.
view_fix: what to keep in place of a view that keeps all behind it.
"""
