"""Prediction: the peak of a program before its first run, without a GPU."""

from __future__ import annotations

from vramlens.prediction.functions import predict

__all__ = ["predict"]
