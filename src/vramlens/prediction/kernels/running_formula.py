"""The formula of autograd's that runs now: what it made itself it does not accumulate into.

The engine adds a gradient to another between two formulas (torch/csrc/autograd/engine.cpp,
evaluate_function; input_buffer.cpp). The other gradient is then older than the node that ran, or
of the same node, where that has two inputs that are one. A sum within a formula, such as
cholesky_backward's (FunctionsManual.cpp), is a new tensor: ``gp_by_hand`` held one more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.prediction.requests.request_log import RequestLog

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


class RunningFormula:
    """Autograd's node that runs now, and the first request since it began."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._number: int | None = None
        self._first_row = 0
        self._has_one_input_twice = False

    def follow(self) -> None:
        """Notes whether another node runs than before."""
        node: Any = torch._C._current_autograd_node()
        number = None if node is None else node._sequence_nr()
        if number == self._number:
            return
        self._number, self._first_row = number, len(self._log.sizes)
        inputs = [] if node is None else [edge for edge in node.next_functions if edge[0]]
        self._has_one_input_twice = len(set(inputs)) < len(inputs)

    def made(self, tensor: Any) -> bool:
        """Whether the formula itself made a tensor, and adds to it."""
        return not self._has_one_input_twice and self._log.is_since(tensor, self._first_row)
