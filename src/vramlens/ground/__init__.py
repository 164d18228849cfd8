"""The ground floor: words and rules that every other package shares. Standard library only.

allocator_sizes: the sizes of PyTorch's caching allocator.
callable_package: packages that are functions, too.
conf_text: the text of the allocator's settings, cut up, and its keys.
event_history: PyTorch's history of events in a snapshot.
launcher: the variables that a launcher sets.
live_objects: classes, namespaces and slots, read without running anyone's code.
own_line: what vramlens says among a program's lines.
source_code: source code, parsed, and a line of it as an answer quotes it.
wrapped_lines: words broken into the lines of a plain answer.
own_session: processes that are ended with what they have started.
printed_answer: answers that print themselves.
vocabulary: closed vocabularies, walls and causes of failures, kinds of a ledger's rows.
verdict: the certainty of claims, numbers and rows.
late_torch: PyTorch, imported when the first of its names is used.
program_errors: errors that are the program's although they are raised in the midst of our code.
place: a line of the user's program, and the names of files, of whichever system they are.
"""
