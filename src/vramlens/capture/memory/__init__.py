"""Memory now: what the driver, PyTorch and the host say of every device at this moment.

device_ledger: where all memory of a GPU is; the rows sum to the total.
driver: NVML: each GPU's memory and the processes on it.
memory_now: all GPUs and the host, as figures and as a table.
pytorch_memory: PyTorch's own counters.
"""
