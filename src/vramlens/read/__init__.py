"""Readers: files to a Trace.

broken_lines: texts that a terminal, a log or a mail has broken over lines, anywhere
error_file: the error file that a rank of torchrun writes
flight_record: a flight record of PyTorch's NCCL backend
json_bounds: what a JSON text would take as Python objects
json_stream: JSON piece by piece, for files too large for one
members: what a ``.vram`` file holds beside the snapshot
oom_figures: the figures of an out-of-memory message
oom_text: out-of-memory errors found in a text of any length
oom_traceback: the traceback above an out-of-memory error in a log
oom_wordings: the wordings of out-of-memory errors, as patterns, and the scan of a log for them
pickle_values: a small pickle as plain values
profiler_trace: a trace of PyTorch's profiler
snapshot: a memory snapshot (``torch.cuda.memory._dump_snapshot``) as a Trace
opened_source: opening what a person names
values: values of a file that anybody may have made
parts/: the JSON parts of a ``.vram`` file beside its snapshot
tables/: the core's tables of a snapshot as columns of a Trace
"""
