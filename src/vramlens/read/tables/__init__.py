"""The core's tables of a snapshot as columns of a Trace.

device_traces: each device's events, final segments and blocks.
lifetime_columns: a device's trace, from what became of its allocations and segments.
side_columns: fields that vramlens has no column for.
original_lines: the lines that the user wrote, in stacks of compiled programs.
"""
