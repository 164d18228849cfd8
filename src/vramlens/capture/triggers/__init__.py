"""Triggers: when a recording is written, and how vramlens comes into a program.

child_processes: spawned children are watched, too.
dump_request: asks a running program for a recording.
ending_line: how a program ended.
on_demand: SIGUSR2 and the socket, in the program.
on_import: waits for the import of torch.
out_of_memory: the failed request and the note in its exception.
sigterm: a recording before a signal ends the program.
user_folder: where programs leave their sockets.
user_program: runs the user's program as Python would.
"""
