"""Recurrent layers as cuDNN runs them."""

from __future__ import annotations

from typing import Any


def put_recurrent_layers(runner: Any) -> None:
    """Later."""
