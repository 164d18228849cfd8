"""Profile: what a trace of PyTorch's profiler says of time and memory."""
