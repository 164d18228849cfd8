"""In the program that is watched: recording its GPU memory. Standard library and torch only,
torch imported late.

alloc_conf: the allocator's settings in the environment.
doctor: what on this machine helps or hinders memory debugging.
failure_facts: what a recording says of the program when a request fails.
line_clock: which line of one frame of a function was running when.
memory: what the driver, PyTorch and the host say of every device at this moment.
names: the modules and the tensors that are alive, called as the program calls them.
process: vramlens as a guest in the user's process.
process_group: this process's place in a distributed job.
recording: what is kept of a running program, and the file that it is written to.
torch_api: PyTorch's private memory functions, and how they differ between versions.
triggers: when a recording is written, and how vramlens comes into a program.
warn: capture's words to the person, and nothing that could stop the program.
"""
