"""What a recording says of the program when a request fails: its text, its batch, its layers.

batch_tables: the batch itself, as it is when a request fails.
failed_expression: what the program was computing when it asked in vain.
freezing_lines: lines of the program that freeze parameters by their names.
idle_checkpointing: gradient checkpointing that layers in eval mode leave out then.
ignored_labels: how many positions of the batch have no label then.
padded_batch: how much of the batch is padding then.
row_lengths: how long the rows of the batch are then.
source_lines: the text of the lines that hold the most then, and of their callers.
"""
