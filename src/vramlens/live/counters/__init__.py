"""Counters: what allocators say of the memory that they have handed out.

gpu_memory: PyTorch's counters and the driver's, for each GPU.
host_allocator: the bytes that the C library's allocator has handed out.
step_counters: counters at each step's end, and their pace.
"""
