"""Where memory's figures can go: one small module a tool, each imported only by who uses it.

``prometheus``, ``opentelemetry`` (the machine or this program), ``tensorboard``, ``wandb``,
``mlflow`` (scalars of a ``Monitor``), ``lightning``, ``transformers``, ``accelerate`` (callbacks of
training loops), ``slurm`` (file names).
"""
