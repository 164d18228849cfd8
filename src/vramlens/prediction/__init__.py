"""Prediction: the peak of a program before its first run, without a GPU.

card: PyTorch made to believe in a GPU.
full_cards: where the program runs out of a card's memory.
kernels: what CUDA's kernels ask for beside their results.
ranks: one rank of a job, without its peers.
requests: what a program asked of the allocator.
tensors: shapes instead of values.

functions: ``predict``.
hooks: the functions that a script offers to be asked with any batch.
lbfgs_history: what an optimizer keeps that values decide.
made_up_decisions: the loops and branches that values decide which nobody knows.
undecided_requests: what is requested only because such a value decided so.
succession: what lives on where that is left out.
own_process: a prediction in a process of its own.
predicted_peak: the answer.
predicted_run: one run with shapes, and the answer made of it.
refusals: what a predicted program may not do.
script: ``vramlens predict SCRIPT``.
script_failure: why a script failed while it was predicted.
"""

from __future__ import annotations

from vramlens.prediction.functions import predict

__all__ = ["predict"]
