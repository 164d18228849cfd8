"""Process: vramlens as a guest in the user's process: threads, sockets and looks that disturb
nothing.

gpu_files: whether this machine has a GPU at all, by its files.
graph_depths: how deep into an autograd graph one may look.
late_errors: errors of signal handlers inside callbacks of C code.
own_socket: sockets of vramlens's own in the user's program.
own_thread: threads of vramlens's own in the user's program.
process_state: what the system says of another process: whether it runs, and what it has started.
reference_index: who refers to what among some objects, read once.
referents: objects asked for what they hold, those alone whose answer is known to be harmless.
thread_trace: tracing one thread with a function in C's sense (``PyEval_SetTrace``).
tracked_objects: the objects that Python's collector knows.
undisturbed: looks during which the interpreter's lock is kept.
"""
