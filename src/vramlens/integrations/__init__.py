"""Integrations: one small module a tool that memory's figures go to, imported only by who uses it.

accelerate: memory beside what ``accelerator.log`` logs, stepped by the program's own loop.
composer: ``MemoryCallback`` for ``Trainer(callbacks=[...])``.
debug_server: PyTorch's debug server (``torch.distributed.debug``, as in 2.13).
lightning: ``MemoryCallback`` for ``Trainer(callbacks=[...])``.
mlflow: a monitor's scalars as metrics of a run; report and recording as its artifacts.
notebook: ``%%vramlens`` records a cell, and shows its verdict and picture below it.
opentelemetry: the machine's or this program's memory as OpenTelemetry's metrics.
prometheus: the machine's or this program's memory as metrics.
ray: memory beside what ``ray.train.report`` reports, in each worker; recordings named by rank.
shared: what the integrations share.
slurm: names of files that no two tasks of a job share, and that say which task wrote them.
tensorboard: a monitor's scalars beside the program's own, and its summary as text.
transformers: ``watch(trainer)``, or ``MemoryCallback`` for ``Trainer(callbacks=[...])``.
wandb: a monitor's scalars, report and recording in Weights & Biases.
"""
