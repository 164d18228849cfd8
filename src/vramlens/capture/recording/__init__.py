"""Recording: what is kept of a running program, and the file that it is written to.

device_facts: the devices' names, limits and ledgers.
flight_file: the last collectives of a rank, beside its recording.
nothing_recorded: why there is no recording, and what to do.
output_path: the files of a process.
private_facts: what of machine, user and run is private.
process_facts: what a recording says about its process.
profiled_steps: a trace of PyTorch's profiler instead.
recorder: begins and ends the recording, and writes it.
recording_file: the file's format and how it is written.
redact: takes out what is private.
redaction_check: searches the written file for it.
ring_size: how many events are kept.
sample_rows: memory over time.
session: the watch of a process, from the import of torch to the end.
step_marks: the steps of the program.
"""
