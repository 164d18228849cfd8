"""What runs in the process that was attached to: the standard library, ``capture`` and ``live``.

agent: the thread that answers one question and goes away.
forked_child: a forked child of the process, seen from the process: what it writes, and its end.
forked_copy: a forked copy, in which the heap is searched while the program runs on.
gentle_imports: imports from source text that was sent along, with rests.
installation: ``vramlens.install()`` in a program that runs already.
pauses: how long the program stood still for what was asked: by our own count, and by its steps.
program_end: the program's end while somebody waits for an answer.
segments: PyTorch's segments without history: what is free in them, and which tensors keep them.
state_now: what is in a process now, without any history: memory, holders, names, segments.
step_watch: some steps of the program watched for leaks and recorded.
tensors_by_device: what is in tensors on each device: bytes by kind, and the largest tensors by name.
"""
