"""Growth: which bytes each step leaves behind, by objects and by counters.

accounting: growth that no judged pile explains.
autocast_cache: copies that torch.autocast's cache keeps.
births: the step in which each live storage was born.
gpu_memory: PyTorch's counters and the driver's, for each GPU.
host_allocator: the bytes that the C library's allocator has handed out.
last_frames: the frames in which a program ended.
line_observer: the lines that made tensors, in steps that are traced.
piles: live bytes by step of birth, at the object where they pile up.
step_counters: counters at each step's end, and their pace.
"""
