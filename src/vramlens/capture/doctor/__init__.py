"""Doctor: what on this machine helps or hinders memory debugging.

checks: one row of the findings, and what a check says for it.
diagnosis: all rows and the verdict.
gpu_checks: PyTorch and the GPU.
gpu_evidence: what they are made from.
host_checks: the host's memory, limits, disk and process group.
nccl_check: the collectives, tried in processes of their own.
nccl_worker: one rank of that trial.
switches: the debug switches of PyTorch, NCCL, CUDA and Python.
torch_checks: PyTorch, asked in a process of its own.
"""
