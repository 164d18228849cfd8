"""What a loss function calls: cross entropies, by what their means are taken; and dropout, which
can be turned off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_DROPOUT_ARGUMENTS = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
"""Functions that drop out inside, with the place of that argument."""
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""The same: here it is the third after the list of weights, before which packed sequences have
one more argument.
"""
_MEAN_ARGUMENTS = (
    "input",
    "target",
    "weight",
    "size_average",
    "ignore_index",
    "reduce",
    "reduction",
)
_MEANS = dict.fromkeys(("cross_entropy", "nll_loss"), _MEAN_ARGUMENTS)
"""Functions whose mean is not over samples, with their arguments (``torch/nn/functional.py``)."""
IGNORED = -100
"""PyTorch's default ``ignore_index``."""


@dataclass(slots=True)
class LossCalls:
    """What was seen.

    Attributes:
        ignored: the values of labels that a mean leaves out.
        class_weights: those of the classes, where a mean is over the weights of the labels and they
            are not all equal.
    """

    ignored: set[int] = field(default_factory=lambda: {IGNORED})
    class_weights: torch.Tensor | None = None

    def note(self, name: str, args: Any, kwargs: Any) -> None:
        """Looks at a call."""
        arguments = {**dict(zip(_MEANS[name], args, strict=False)), **kwargs}
        if arguments.get("reduction", "mean") != "mean" or arguments.get("reduce") is False:
            return
        if isinstance(arguments.get("ignore_index"), int):
            self.ignored.add(arguments["ignore_index"])
        weights = arguments.get("weight")
        if (
            isinstance(weights, torch.Tensor)
            and weights.numel() > 1
            and bool((weights != weights[0]).any())
        ):
            self.class_weights = weights.detach()


def _dropout_place(name: str, args: Any) -> int | None:
    """The position of the dropout argument of a function; None where it has none."""
    if name not in _RECURRENT:
        return _DROPOUT_ARGUMENTS.get(name)
    return next((index + 3 for index, value in enumerate(args) if isinstance(value, list)), None)


@contextlib.contextmanager
def watched(calls: LossCalls | None = None) -> Iterator[None]:
    """Turns dropout off, and nothing else: modules stay in training, so what depends on the batch
    still does.

    Args:
        calls: gets what was seen.
    """
    from torch.overrides import TorchFunctionMode

    class LossWatch(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(function, "__name__", "")
            if "dropout" in name:
                inplace = kwargs.get("inplace", False) or (len(args) > 3 and args[3] is True)
                return args[0] if inplace or name.endswith("_") else args[0].clone()
            if calls is not None and name in _MEANS:
                calls.note(name, args, kwargs)
            args, kwargs = _without_dropout(name, args, kwargs)
            return function(*args, **kwargs)

    with LossWatch():
        yield


def _without_dropout(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a function, with 0 in place of its dropout."""
    place = _dropout_place(name, args)
    if place is not None and len(args) > place:
        return (*args[:place], 0.0, *args[place + 1 :]), kwargs
    if place is not None and "dropout_p" in kwargs:
        return args, {**kwargs, "dropout_p": 0.0}
    return args, kwargs
