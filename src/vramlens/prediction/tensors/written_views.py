"""Gradients of views that were written in place: on a GPU they go through a tensor of the base's size.

Autograd gives such a view a new history. Of plain tensors that is ``as_strided``, whose backward makes
zeros of the base's size and copies the gradient into them (VariableHooks::grad_fn in
torch/csrc/autograd/variable.cpp; as_strided_backward in FunctionsManual.cpp). Of tensors of a Python
class, as shapes are, it is the view again, whose backward makes nothing. Activations in place behind an
instance norm show it: its result is a view (``unet3d_ckpt_fp16`` on an H200).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MAKE_NOTHING = {
    "AliasBackward0", "PermuteBackward0", "ReshapeAliasBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "SqueezeBackward2", "TBackward0", "TransposeBackward0", "UnsafeViewBackward0",
    "UnsqueezeBackward0", "ViewBackward0",
}  # fmt: skip
"""Views that are no part: the backward of a part makes a tensor of the whole itself."""


class WrittenViews:
    """Those that an operator has just written, until another runs that makes no view."""

    def __init__(self) -> None:
        self._written: list[tuple[weakref.ref[Any], int]] = []

    def follow(self, operator: Operator, args: Any) -> None:
        """Notes the view that an operator has written; its history is new once that has returned."""
        if not operator.written or not torch.is_grad_enabled():
            return
        tensor = args[operator.written[0]] if operator.written[0] < len(args) else None
        if isinstance(tensor, torch.Tensor) and tensor._is_view():
            self._written.append((weakref.ref(tensor), tensor._version))

    def catch_up(self, operator: Operator) -> None:
        """Lets the gradients of the views that were noted be copied.

        Args:
            operator: about to run. A view may be the one that autograd makes again: it then holds a
                lock that a question for the history would wait for.
        """
        if operator.is_view or not self._written:
            return
        written, self._written = self._written, []
        for reference, version in written:
            tensor = reference()
            if tensor is None or tensor._version != version + 1:
                continue
            node = tensor.grad_fn
            if node is not None and _leads_to_base(node):
                node.register_prehook(_copied)


def _leads_to_base(node: Any) -> bool:
    """Whether a history is of views of what was written, at least of one."""
    is_view = False
    while node is not None and node.name() in _MAKE_NOTHING:
        node, is_view = node.next_functions[0][0], True
    return is_view and node is not None and node.name().endswith("CopySlices")


def _copied(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        gradient if gradient is None else gradient.clone(memory_format=torch.contiguous_format)
        for gradient in gradients
    )
