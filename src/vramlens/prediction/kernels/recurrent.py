"""Recurrent layers as cuDNN runs them: one operator for all steps, with a reserve that the backward
reads.

aten/src/ATen/native/cudnn/RNN.cpp (_cudnn_rnn, _cudnn_rnn_backward). The size of the reserve is
asked of cuDNN, which
does not document it; neither does it the workspaces. Both are as 192 layers of three kinds asked for
them on an H200 (benchmarks/prediction/workspaces.json.xz, cuDNN 9.19, float32): the reserves are
there to the rounding of blocks; the workspaces are half to twice of what the rule says, most within
a third.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.requests.request_log import RequestLog
from vramlens.units import MIB

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import Runner
else:
    from vramlens.ground.late_torch import torch

BASIS = "the reserve space of recurrent layers, which cuDNN does not report"
SHARE = 0.08
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
_KEPT = {0: 1, 1: 1, 2: 5, 3: 6}
"""Numbers that are kept for each unit and step, by mode."""
_THREADS_OF_PROCESSOR, _STATE_OF_THREAD = 2048, 24
"""cuDNN's states of random numbers, which the first layer with dropout asks for and PyTorch keeps
(cudnn/RNN.cpp, DropoutState): 6,488,064 bytes on the 132 processors of an H200.
"""
_WORKSPACE_OF_LAYER = 8 * MIB
_WORKSPACE_OF_ROW = 8400
"""Bytes for each layer and direction, and for each step of each sample and direction."""


def put_recurrent_layers(runner: Runner) -> None:
    """Makes ``torch.nn.LSTM`` and its like run as on a GPU."""
    for name, mode in _MODES.items():
        plain = getattr(torch._VF, name)
        setattr(torch._VF, name, _layer(runner, plain, mode))
    plain_flatten = torch.nn.RNNBase.flatten_parameters

    def flatten(layer: Any) -> None:
        weights = [
            weight for weight in layer._flat_weights if isinstance(weight, runner.fake_tensor)
        ]
        if not weights or weights[0].fake_device.type != "cuda":
            plain_flatten(layer)
            return
        # The weights move into one buffer, and what held them is freed (_cudnn_rnn_flatten_weight).
        runner.log.scratch(sum(weight.numel() * weight.element_size() for weight in weights))

    setattr(torch.nn.RNNBase, "flatten_parameters", flatten)  # noqa: B010


def _layer(runner: Runner, plain: Callable[..., Any], mode: int) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, runner.fake_tensor) or tensor.fake_device.type != "cuda":
            return plain(*args)
        is_padded = isinstance(args[3], bool)
        if is_padded:
            lengths: list[int] = []
            states, *options, batch_first = args[1:9]
        else:  # packed: the batch's sizes step by step come second (torch/nn/modules/rnn.py)
            lengths, states, *options = args[1:9]
            lengths, batch_first = [int(length) for length in lengths], False
        weights, has_biases, layers, dropout, train, is_bidirectional = options
        hidden, cell = (states[0], states[1]) if mode == 2 else (states, None)
        tensor, weights = _cast(tensor, weights)
        outputs = torch.ops.aten._cudnn_rnn.default(
            tensor, weights, 4 if has_biases else 2, None, hidden.to(tensor.dtype),
            None if cell is None else cell.to(tensor.dtype), mode, hidden.shape[-1], 0, layers, batch_first, dropout,
            train, is_bidirectional, lengths, None,
        )  # fmt: skip
        return outputs[:3] if mode == 2 else outputs[:2]

    return run


def _cast(tensor: Any, weights: Any) -> Any:
    if not torch.is_autocast_enabled("cuda"):
        return tensor, weights
    dtype = torch.get_autocast_dtype("cuda")
    return tensor.to(dtype), [weight.to(dtype) for weight in weights]


def forward_result(args: Any, fake_mode: Any) -> Any:
    """The output, the last states, the reserve and no weights of its own, of ``_cudnn_rnn``."""
    tensor, hidden, cell, mode = args[0], args[4], args[5], args[6]
    units, layers, batch_first, train, is_bidirectional = (
        args[7],
        args[9],
        args[10],
        args[12],
        args[13],
    )
    directions = 2 if is_bidirectional else 1
    with fake_mode:
        outer = _outer_shape(tensor, batch_first)
        output = tensor.new_empty((*outer, units * directions))
        last_hidden = tensor.new_empty(hidden.shape)
        last_cell = tensor.new_empty(cell.shape if cell is not None else (0,))
        reserve_bytes = _reserve_bytes(args, math.prod(outer)) if train else 0
        reserve = tensor.new_empty((reserve_bytes,), dtype=torch.uint8)
        no_weights = tensor.new_empty((0,))
    return (
        (output.transpose(0, 1) if batch_first else output),
        last_hidden,
        last_cell,
        reserve,
        no_weights,
    )


def _reserve_bytes(args: Any, rows: int) -> int:
    """What the backward reads: of each layer its states, of all layers but the last what the next
    one reads, and of that the bits that dropout took away.
    """
    mode, units, layers, dropout, is_bidirectional = args[6], args[7], args[9], args[11], args[13]
    directions = 2 if is_bidirectional else 1
    size_each = args[0].element_size()
    numbers = _KEPT[mode] * layers + layers - 1
    dropped_bits = (layers - 1) * rows * units * directions**2 if dropout else 0
    return int(numbers * rows * units * directions * size_each + dropped_bits // 8)


def dropout_states(args: Any, processors: int) -> int:
    """Bytes of the states of random numbers that a layer with dropout needs; 0 without."""
    layers, dropout, train = args[9], args[11], args[12]
    if not (train and dropout and layers > 1):
        return 0
    return processors * _THREADS_OF_PROCESSOR * _STATE_OF_THREAD


def note_workspace(log: RequestLog, args: Any, *, is_backward: bool) -> None:
    """What ``_cudnn_rnn`` or its backward asks for beside its results: half to twice the rule.

    Packed sequences may be unpacked there: at most, every one is as long as the longest.
    """
    shift = 4 if is_backward else 0  # the backward has the outputs and their gradients in between
    layers, batch_first, is_bidirectional, sizes = (
        args[place + shift] for place in (9, 10, 13, 14)
    )
    rows = math.prod(_outer_shape(args[0], batch_first))
    most_rows = len(sizes) * sizes[0] if sizes else rows
    directions = 2 if is_bidirectional else 1
    size, most_bytes = (
        directions * (layers * _WORKSPACE_OF_LAYER + count * _WORKSPACE_OF_ROW)
        for count in (rows, most_rows)
    )
    log.scratch(size, (size // 2, 2 * most_bytes))


def _outer_shape(tensor: Any, batch_first: bool) -> tuple[int, ...]:
    """Steps and samples; one number for both where sequences are packed."""
    if tensor.dim() == 2:
        return (int(tensor.shape[0]),)
    first, second = int(tensor.shape[0]), int(tensor.shape[1])
    return (second, first) if batch_first else (first, second)


def backward_result(args: Any, fake_mode: Any) -> Any:
    """The gradients of the input, the states and the weights, of ``_cudnn_rnn_backward``."""
    tensor, weights, hidden, cell = args[0], args[1], args[4], args[5]
    with fake_mode:
        empty = tensor.new_empty((0,))
        of_cell = empty if cell is None else tensor.new_empty(cell.shape)
        return (
            tensor.new_empty(tensor.shape),
            tensor.new_empty(hidden.shape),
            of_cell,
            [tensor.new_empty(weight.shape) for weight in weights],
        )


def packed_result(args: Any, fake_mode: Any, log: RequestLog) -> Any:
    """The numbers of all sequences, and how many sequences each step has, of
    ``_pack_padded_sequence``.

    It copies the numbers of each step, then all of them into one tensor
    (aten/src/ATen/native/PackedSequence.cpp).
    """
    tensor, lengths = args[0], [int(length) for length in args[1]]
    sizes = [sum(length > step for length in lengths) for step in range(max(lengths))]
    with fake_mode:
        data = tensor.new_empty((sum(lengths), *tensor.shape[2:]))
    log.scratch(data.numel() * data.element_size())
    return data, torch.tensor(sizes, dtype=torch.int64)
