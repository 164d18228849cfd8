"""Readers: files to a Trace.

broken_lines: texts that a terminal, a log or a mail has broken over lines, anywhere.
error_file: the error file that a rank of torchrun writes.
flight_record: a flight record of PyTorch's NCCL backend.
json_bounds: what a JSON text would take as Python objects.
json_stream: JSON piece by piece, for files too large for one.
members: what a ``.vram`` file holds beside the snapshot.
opened_source: opening what a person names.
pickle_values: a small pickle as plain values.
profiler_trace: a trace of PyTorch's profiler.
snapshot: a memory snapshot (``torch.cuda.memory._dump_snapshot``) as a Trace.
values: values of a file that anybody may have made.
oom: out-of-memory errors in texts.
parts: the JSON parts of a ``.vram`` file beside its snapshot.
tables: the core's tables of a snapshot as columns of a Trace.
engine_log_reader: what vLLM, SGLang and NCCL print of their own memory in a log.
live_history: what PyTorch of this process recorded, as a Trace.
nsight_export: reading what Nsight Systems recorded.
watchdog_log: which collective each rank was in when it gave up.
"""
