"""What CUDA kernels ask for beside their results, and where they need less than a run with shapes
shows.

Beside each rule stands what it rests on: a file of PyTorch, or a recording that shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from vramlens.cards.known_cards import Card
from vramlens.prediction.kernels import (
    attention,
    ctc_loss,
    image_layout,
    linear_algebra,
    recurrent,
    reductions,
    scratch_memory,
    sorting,
)
from vramlens.prediction.kernels.convolutions import workspaces as convolutions
from vramlens.prediction.kernels.gpu_only_results import gpu_only_result
from vramlens.prediction.kernels.kernel_call import KernelCall, Rule
from vramlens.prediction.requests.request_log import RequestLog, is_of_prediction
from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_RULES: dict[str, Rule] = {
    **attention.RULES,
    **image_layout.RULES,
    **ctc_loss.RULES,
    **linear_algebra.RULES,
    **reductions.RULES,
    **scratch_memory.RULES,
    **sorting.RULES,
}
_FIRST: dict[str, Rule] = {
    **convolutions.FIRST,
    **ctc_loss.FIRST,
    **image_layout.FIRST,
    **reductions.FIRST,
    **scratch_memory.FIRST,
    **sorting.FIRST,
}
_IN_PLACE_ON_ZEROS = {
    "aten.index_add", "aten.index_fill", "aten.index_put", "aten.masked_scatter", "aten.put", "aten.scatter",
    "aten.scatter_add",
}  # fmt: skip
_IN_PLACE_ON_OWN = {
    "BinaryCrossEntropyWithLogitsBackward0": {"aten.sub", "aten.mul", "aten.div"},
    "MaxBackward1": {"aten.logical_and"},
    "MinBackward1": {"aten.logical_and"},
    "MedianBackward0": {"aten.logical_and"},
    "NanmedianBackward0": {"aten.logical_and"},
}
"""Operators that autograd's formulas run in place, the former on fresh zeros, the latter on what the
formula made, but not on tensors of a kind of their own, such as shapes' (isTensorSubclassLike in
torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native/TensorAdvancedIndexing.cpp).
"""
_LINEAR_LAYERS = ("torch/nn/modules/linear.py", "torch/nn/functional.py")
_SEEDS_ON_HOST = {"aten._scaled_dot_product_efficient_attention"}
_ORDERS = {
    "aten.native_dropout": (1, 0),
    "aten._ctc_loss": (1, 0),
    "aten._thnn_fused_gru_cell": (1, 0),
    "aten._thnn_fused_lstm_cell": (2, 0, 1),
    "aten._embedding_bag": (2, 1, 0, 3),
    "aten._embedding_bag_forward_only": (2, 1, 0, 3),
    "aten._scaled_dot_product_cudnn_attention": (2, 3, 0, 1),
}
"""Results that kernels ask for in another order than they return them (Dropout.cu, RNN.cu,
LossCTC.cu and EmbeddingBag.cu in aten/src/ATen/native/cuda; ``gpt_pretrain``): which cached block
serves which hangs on it.
"""


class Kernels:
    """The rules of one card.

    Attributes:
        uncertain: rules that were used and are less than exact, with the share of the peak by which
            each may be off.
        not_modelled: what may be asked for and is not, with its bytes.
    """

    def __init__(self, log: RequestLog, card: Card) -> None:
        self._log, self._card = log, card
        self.uncertain: dict[str, float] = {}
        self.not_modelled: dict[str, int] = {}
        self._sole_uses: tuple[int, int] | None = None
        self._formula = _RunningFormula(log)
        self._handles = linear_algebra.BlasHandles(log, card)
        self._has_dropout_states = False
        self._tried_plans = convolutions.TriedPlans(log, card)
        self._held: list[int] = []  # rows of what an operator asked for before its results

    def accumulated(self, operator: Operator, args: Any, tensors: list[Any]) -> Any | None:
        """The tensor that another is added to in place, although shapes' tensors make it a new one:
        a gradient, or a product that a linear layer adds its bias to (linear in Linear.cpp).

        torch/csrc/autograd/input_buffer.cpp (can_accumulate_inplace): where nothing else holds the
        first one, and the backward makes no graph of its own.
        """
        self._formula.follow()
        if operator.name in _IN_PLACE_ON_ZEROS or self._formula.changes_own(operator.name, args):
            return args[0] if is_called_by_autograd() else None
        if operator.name != "aten.add" or len(tensors) != 2:
            return None
        if is_called_by_autograd():
            return tensors[0] if self._is_accumulation(*tensors) else None
        is_bias = tensors[1].dim() == 1 < tensors[0].dim() and _is_called_by(_LINEAR_LAYERS)
        return tensors[0].detach() if is_bias else None

    def _is_accumulation(self, first: Any, second: Any) -> bool:
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        if torch.is_grad_enabled() or self._formula.made(first):
            return False
        uses = first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata)
        if self._sole_uses is None:
            self._sole_uses = uses
        return bool(uses[0] <= self._sole_uses[0] and uses[1] <= self._sole_uses[1])

    def learn_sole_uses(self) -> None:
        """Sees what the counts of uses are of a gradient that only autograd holds: they differ
        by version.
        """
        self._sole_uses = None
        weight = torch.ones(4, 4, device="cuda", requires_grad=True)
        doubled = weight * 2
        total: Any = doubled.exp().sum() + doubled.sin().sum()
        total.backward()

    def noted(self, operator: Operator, args: Any, outputs: list[Any]) -> bool:
        """Whether an operator's results were asked for here, with workspaces in between."""
        if operator.name != "aten.convolution_backward" or not _are_on_card(outputs):
            return False
        self.uncertain[convolutions.BASIS] = convolutions.SHARE
        convolutions.note_backward(self._log, self._tried_plans, self._card, args, outputs)
        return True

    def on_device(self, operator: Operator, outputs: list[Any]) -> list[Any]:
        """The results that are asked of the device, in order: seeds of a fused attention stay on
        the host.

        attention.cu (_efficient_attention_forward): on the device only while a graph is captured;
        cuDNN's are on it.
        """
        if operator.name in _SEEDS_ON_HOST:
            return [
                tensor for tensor in outputs if tensor.numel() > 2 or tensor.is_floating_point()
            ]
        order = _ORDERS.get(operator.name)
        return outputs if order is None else [outputs[place] for place in order]

    def own_result(self, operator: Operator, args: Any, fake_mode: Any) -> Callable[[], Any] | None:
        """What makes an operator's results where PyTorch does not know their shapes; None where
        it does.
        """
        if operator.name == "aten._cudnn_rnn":
            self.uncertain[recurrent.BASIS] = recurrent.SHARE
            return lambda: self._recurrent(args, fake_mode)
        if operator.name == "aten._cudnn_rnn_backward":
            return lambda: recurrent.backward(args, fake_mode, self._log)
        if operator.name == "aten._pack_padded_sequence":
            return lambda: recurrent.packed_result(args, fake_mode, self._log)
        if image_layout.is_with_channels_last(operator.name, args):
            return lambda: image_layout.results_with_channels_last(operator, args, fake_mode)
        return gpu_only_result(operator.name, args, fake_mode)

    def _recurrent(self, args: Any, fake_mode: Any) -> Any:
        states = recurrent.dropout_states(args, self._card.processors)
        if states and not self._has_dropout_states:
            self._has_dropout_states = True
            self._log.scratch(recurrent.SEED_BYTES)
            self._log.allocate(states)
        return recurrent.forward(args, fake_mode, self._log)

    def before(self, operator: Operator, args: Any, kwargs: Any) -> None:
        """Asks for what is asked for before an operator's results."""
        rule = _FIRST.get(operator.name)
        if rule is None:
            return
        call = KernelCall(name=operator.name, args=args, kwargs=kwargs, outputs=[], card=self._card)
        if _are_on_card(call.tensors):
            self._held = self._left_of(rule(call))

    def after(self, operator: Operator, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """Asks for what is asked for beside an operator's results."""
        if not _are_on_card(outputs):
            return
        name = operator.name
        call = KernelCall(name=name, args=args, kwargs=kwargs, outputs=outputs, card=self._card)
        self._held += self._left_of(linear_algebra.copied_factors(call))
        self._handles.follow(name, args)
        if linear_algebra.is_rough(call):
            self.uncertain[linear_algebra.BASIS] = linear_algebra.SHARE
        if name == "aten.convolution":
            self.uncertain[convolutions.BASIS] = convolutions.SHARE
            convolutions.note_forward(self._log, self._tried_plans, args, outputs[0])
        rule = _RULES.get(name)
        sizes = [*scratch_memory.copied_bytes(call), *(rule(call) if rule else ())]
        if sizes:
            self._ask(sizes, self._log.most_times(call.tensors) if self._log.guessed else 0)
        while self._held:
            self._log.free(self._held.pop())

    def _ask(self, sizes: Iterable[int], most_times: int = 0) -> None:
        """Asks for bytes in order, gives back where they are less than none, and in the end all."""
        for row in reversed(self._left_of(sizes, most_times)):
            self._log.free(row)

    def _left_of(self, sizes: Iterable[int], most_times: int = 0) -> list[int]:
        """The rows that are left: asks for bytes in order, gives back where they are less than none.

        Args:
            most_times: how many times as much it may be, where that hangs on a guess.
        """
        rows: list[int] = []
        for size in sizes:
            if size > 0:
                rows.append(self._log.allocate(size))
                if most_times:
                    self._log.bounds[rows[-1]] = 1, most_times * size
            elif size < 0:
                latest = next(row for row in reversed(rows) if self._log.sizes[row] == -size)
                rows.remove(latest)
                self._log.free(latest)
        return rows


def _are_on_card(tensors: list[Any]) -> bool:
    return bool(tensors) and tensors[0].fake_device.type == "cuda"


class _RunningFormula:
    """Autograd's node that runs now, and the first request since it began: what a formula made
    itself it does not accumulate into.

    The engine adds a gradient to another between two formulas (torch/csrc/autograd/engine.cpp,
    evaluate_function; input_buffer.cpp). The other gradient is then older than the node that ran,
    or of the same node, where that has two inputs that are one. A sum within a formula, such as
    cholesky_backward's (FunctionsManual.cpp), is a new tensor: ``gp_by_hand`` held one more.
    """

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._number: int | None = None
        self._first_row = 0
        self._has_one_input_twice = False
        self._in_place: set[str] = set()

    def follow(self) -> None:
        """Notes whether another node runs than before."""
        node: Any = torch._C._current_autograd_node()
        number = None if node is None else node._sequence_nr()
        if number == self._number:
            return
        self._number, self._first_row = number, len(self._log.sizes)
        inputs = [] if node is None else [edge for edge in node.next_functions if edge[0]]
        self._has_one_input_twice = len(set(inputs)) < len(inputs)
        self._in_place = set() if node is None else _IN_PLACE_ON_OWN.get(node.name(), set())

    def changes_own(self, name: str, args: Any) -> bool:
        """Whether the formula runs an operator in place on what it made."""
        return name in self._in_place and self._log.is_since(args[0], self._first_row)

    def made(self, tensor: Any) -> bool:
        """Whether the formula itself made a tensor, and adds to it."""
        return not self._has_one_input_twice and self._log.is_since(tensor, self._first_row)


def is_called_by_autograd() -> bool:
    """Whether autograd's own thread runs an operator without any Python function in between."""
    return _calling_frame() is None


def _is_called_by(files: tuple[str, ...]) -> bool:
    frame = _calling_frame()
    return frame is not None and frame.f_code.co_filename.endswith(files)


def _calling_frame() -> FrameType | None:
    """The innermost frame of Python that is of no prediction's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_of_prediction(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.endswith(
        ("_compile.py", "eval_frame.py", "_stats.py")
    ):
        frame = frame.f_back
    return frame
