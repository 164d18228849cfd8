"""Compare: what changed between two runs of one program."""
