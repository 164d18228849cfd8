"""Leaks: what grows in the running process, as results that can be printed.

allocating_line: the line that asks for the memory.
entries_in_use: stores whose entries the program goes on writing to.
leak_report: the results.
leak_text: the results as text.
merged_leaks: leaks of one statement as one.
parameter_state: what an optimizer keeps once for each of its parameters.
pile_leak: the leak that a pile is.
pile_verdict: the verdict on a pile.
replaced_entries: tables whose entries are written anew, and that are full.
shared_memory: tensors that wait for another process.
uncounted: leaks that only counters show.
unreached: leaks that no root reaches.
"""
