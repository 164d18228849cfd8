"""Going into a running process that nobody prepared.

attachment: one attach from beginning to end: in, the question, the answer, out.
bootstrap: the text that a foreign interpreter runs: it starts a thread, and nothing else.
entry: the ways into a foreign interpreter, tried in order.
injection: asking a foreign interpreter to run a text of Python.
inside: what runs in the process that was attached to.
meeting_point: where a process meets who attached to it.
messages: the words between ``vramlens attach`` and the process: JSON objects, one a line.
python_symbols: where Python's functions lie in another process, read from its memory.
sent_sources: the source text of what runs in the process, in one file that is sent along.
stopped_thread: one thread of another process, stopped by ptrace.
story: the answer of an attach as text, for a terminal, and as data.
target_process: whose the process is, what it sees, and what forbids to attach.
thread_code: the machine code of a thread that runs one text of Python, for x86-64.
"""
