"""Triggers: when a recording is written, and how vramlens comes into a program.

batch_tables: the batch itself, as it is when a request fails.
child_processes: spawned children are watched, too.
dump_request: asks a running program for a recording.
ending_line: how a program ended.
failed_expression: what the program was computing when it asked in vain.
idle_checkpointing: gradient checkpointing that layers in eval mode leave out then.
ignored_labels: how many positions of the batch have no label then.
on_demand: SIGUSR2 and the socket, in the program.
on_import: waits for the import of torch.
out_of_memory: the failed request and the note in its exception.
padded_batch: how much of the batch is padding then.
row_lengths: how long the rows of the batch are then.
sigterm: a recording before a signal ends the program.
source_lines: the text of the lines that hold the most then, and of their callers.
user_folder: where programs leave their sockets.
user_program: runs the user's program as Python would.
"""
