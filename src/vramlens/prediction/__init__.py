"""Prediction: the peak of a program before its first run, without a GPU.

card: PyTorch made to believe in a GPU.
kernels: what CUDA's kernels ask for beside their results.
requests: what a program asked of the allocator.
tensors: shapes instead of values.

functions: ``predict``.
predicted_peak: the answer.
predicted_run: one run with shapes, and the answer made of it.
script: ``vramlens predict SCRIPT``.
"""

from __future__ import annotations

from vramlens.prediction.functions import predict

__all__ = ["predict"]
