"""The ground floor: words and rules that every other package shares. Standard library only.

callable_package: packages that are functions, too.
closed_words: the base of closed vocabularies.
conf_text: the text of the allocator's settings, cut up.
failure: the walls and causes of an out-of-memory failure.
event_history: PyTorch's history of events in a snapshot.
launcher: the variables that a launcher sets.
ledger_kinds: the kinds of a device's memory.
live_objects: classes, namespaces and slots, read without running anyone's code.
own_line: what vramlens says among a program's lines.
own_session: processes that are ended with what they have started.
printed_answer: answers that print themselves.
verdict: the certainty of claims, numbers and rows.
late_torch: PyTorch, imported when the first of its names is used.
program_errors: errors that are the program's although they are raised in the midst of our code.
place: a line of the user's program, and the names of files, of whichever system they are.
"""
