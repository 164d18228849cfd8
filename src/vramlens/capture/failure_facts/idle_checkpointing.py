"""Gradient checkpointing that is on, and that transformers leaves out as its layers are in eval mode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from vramlens.capture.process.tracked_objects import tracked_of_types
from vramlens.capture.process.undisturbed import undisturbed
from vramlens.ground.live_objects import class_name
from vramlens.ground.program_errors import own_errors

_LAYERS = "transformers.modeling_layers"
"""Its layers compute again what they did not keep where ``gradient_checkpointing`` and ``training`` are set."""


def idle_checkpointing() -> str | None:
    """The class of a layer with gradient checkpointing that is in eval mode; None where there is none.
    Never raises: the recording matters more.
    """
    with own_errors():
        base = getattr(sys.modules.get(_LAYERS), "GradientCheckpointingLayer", None)
        if base is None:
            return None
        with undisturbed():
            return next(_idle_classes(list(_kinds_of(base))), None)
    return None


def _kinds_of(base: type) -> Iterator[type]:
    """Yields a class and all that are derived from it."""
    yield base
    derived: list[type] = type.__subclasses__(base)
    for kind in derived:
        yield from _kinds_of(kind)


def _idle_classes(kinds: list[type]) -> Iterator[str]:
    """Yields the class of each such layer; what is no instance has no such attributes."""
    for layer in tracked_of_types(dict(zip(map(id, kinds), kinds, strict=True))):
        attributes: dict[str, Any] = object.__getattribute__(layer, "__dict__")
        is_on = attributes.get("gradient_checkpointing") is True
        if is_on and attributes.get("training") is False:
            yield class_name(type(layer))
