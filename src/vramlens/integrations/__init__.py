"""Integrations: one small module a tool that memory's figures go to, imported only by who uses it.

``prometheus``, ``opentelemetry`` (the machine or this program), ``tensorboard``, ``wandb``,
``mlflow`` (scalars of a ``Monitor``), ``lightning``, ``transformers``, ``accelerate`` (callbacks of
training loops), ``ray``, ``notebook``, ``debug_server`` (every rank's page), ``slurm`` (file names),
``shared`` (what they share).
"""
