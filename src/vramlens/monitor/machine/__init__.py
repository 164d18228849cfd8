"""Machine: every GPU and the processes on it, now.

machine: the look at all of it.
device_memory: free and total memory of a GPU.
inside: the file in which a program tells of its allocator.
kinds: a GPU's memory by kind.
host_processes: whose process it is.
process_matching: which of the driver's processes is which program.
"""
