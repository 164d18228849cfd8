"""Recurrent layers as cuDNN runs them: one operator for all steps, with a reserve that the backward
reads.

aten/src/ATen/native/cudnn/RNN.cpp (_cudnn_rnn, _cudnn_rnn_backward). The size of the reserve is
asked of cuDNN, which does not document it; neither does it the workspaces (recurrent_sizes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.recurrent_sizes import RecurrentCall
from vramlens.prediction.requests.request_log import RequestLog

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch

BASIS = "reserve and workspaces of recurrent layers, as cuDNN requested them on an H200"
SHARE = 0.01
SEED_BYTES = 8
"""Of the number that the states of a layer's dropout begin from, drawn on the device."""
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
_THREADS_OF_PROCESSOR, _STATE_OF_THREAD = 2048, 24
"""cuDNN's states of random numbers, which the first layer with dropout asks for and PyTorch keeps
(cudnn/RNN.cpp, DropoutState): 6,488,064 bytes on the 132 processors of an H200.
"""
_IN_ONE_BUFFER = "vramlens_in_one_buffer"
"""Of weights that ``flatten_parameters`` moved; others are copied into one buffer by each call, which
the backward reads.
"""


def put_recurrent_layers(runner: OperatorRunner) -> None:
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
        if weights[0].dtype not in torch.backends.cudnn.CUDNN_TENSOR_DTYPES:
            return
        with torch.no_grad():
            _move_into_one_buffer(weights)

    setattr(torch.nn.RNNBase, "flatten_parameters", flatten)  # noqa: B010


def _move_into_one_buffer(weights: list[Any]) -> None:
    """Makes weights parts of one new tensor: what held each is freed as it moves
    (copy_weights_to_flat_buf_views in cudnn/RNN.cpp).
    """
    for weight, part in zip(weights, _in_one_buffer(weights[0], weights), strict=True):
        weight.data = part
        setattr(weight, _IN_ONE_BUFFER, True)


def _layer(runner: OperatorRunner, plain: Callable[..., Any], mode: int) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        tensor = args[0]
        if not runner.is_on_card(tensor):
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
        tensor, weights, in_one_buffer = _cast(tensor, weights)
        outputs = torch.ops.aten._cudnn_rnn.default(
            tensor, weights, 4 if has_biases else 2, in_one_buffer, hidden.to(tensor.dtype),
            None if cell is None else cell.to(tensor.dtype), mode, hidden.shape[-1], 0, layers, batch_first, dropout,
            train, is_bidirectional, lengths, None,
        )  # fmt: skip
        return outputs[:3] if mode == 2 else outputs[:2]

    return run


def _cast(tensor: Any, weights: Any) -> tuple[Any, Any, Any | None]:
    """The input and the weights as autocast takes them, in float16 whatever its own type is, and what
    stands for their one buffer; None where the weights do not lie in one (_cudnn_rnn_cast_reflatten in
    cudnn/AutocastRNN.cpp).
    """
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.float16
        return tensor.to(dtype), [weight.to(dtype) for weight in weights], tensor.new_empty(0)
    is_flat = all(weight.__dict__.get(_IN_ONE_BUFFER) for weight in weights)
    return tensor, weights, tensor.new_empty(0) if is_flat else None


def forward(args: Any, fake_mode: Any, log: RequestLog) -> Any:
    """The output, the last states, the reserve and the weights' own buffer, of ``_cudnn_rnn``;
    requested as RNN.cpp does.
    """
    call = call_of(args, is_backward=False)
    copy = _copy_with_steps_first(args[0], args[10], log)
    results = _forward_result(args, call, fake_mode)
    output, last_hidden, last_cell, reserve, weights = results
    for tensor in (output, last_hidden, last_cell, weights):
        log.note(tensor)
    workspace = _workspace(call, log)
    log.note(reserve)
    log.free(workspace)
    _free(copy, log)
    return results


def _forward_result(args: Any, call: RecurrentCall, fake_mode: Any) -> Any:
    tensor, weight_list, buffer, hidden, cell = args[0], args[1], args[3], args[4], args[5]
    batch_first, train = args[10], args[12]
    outer = _outer_shape(tensor, batch_first)
    with fake_mode:
        output = tensor.new_empty((*outer, call.units * call.directions))
        last_hidden = tensor.new_empty(hidden.shape)
        last_cell = tensor.new_empty(cell.shape if cell is not None else (0,))
        reserve_bytes = call.reserve_bytes if train else 0
        reserve = tensor.new_empty((reserve_bytes,), dtype=torch.uint8)
        count = 0 if buffer is not None else sum(weight.numel() for weight in weight_list)
        weights = tensor.new_empty((count,))
    return (
        output.transpose(0, 1) if batch_first else output,
        last_hidden,
        last_cell,
        reserve,
        weights,
    )


def _copy_with_steps_first(tensor: Any, batch_first: bool, log: RequestLog) -> int | None:
    """The row of a copy whose steps lie one after the other; None where they do so already."""
    ordered = tensor.transpose(0, 1) if batch_first and tensor.dim() > 2 else tensor
    return None if ordered.is_contiguous() else log.allocate(tensor.nbytes)


def _workspace(call: RecurrentCall, log: RequestLog) -> int:
    """The row of a workspace."""
    row = log.allocate(call.workspace_bytes)
    log.bounds[row] = call.workspace_bounds
    return row


def _free(row: int | None, log: RequestLog) -> None:
    if row is not None:
        log.free(row)


def call_of(args: Any, *, is_backward: bool) -> RecurrentCall:
    """What the arguments of an operator say."""
    shift = 4 if is_backward else 0  # the backward has the outputs and their gradients in between
    mode, units, layers, batch_first, dropout, train, is_bidirectional, sizes = (
        args[place + shift] for place in (6, 7, 9, 10, 11, 12, 13, 14)
    )
    tensor, weights = args[0], args[1]
    outer = _outer_shape(tensor, batch_first)
    return RecurrentCall(
        mode=mode,
        units=units,
        inputs=int(tensor.shape[-1]),
        layers=layers,
        directions=2 if is_bidirectional else 1,
        dropout=bool(dropout and train and layers > 1),
        packed=bool(sizes),
        rows=math.prod(outer),
        padded_rows=len(sizes) * sizes[0] if sizes else math.prod(outer),
        samples=sizes[0] if sizes else outer[-1],
        size_each=tensor.element_size(),
        weight_bytes=sum(
            weight.numel() * weight.element_size() for weight in weights if weight.dim() == 2
        ),
        is_bfloat16=tensor.dtype is torch.bfloat16,
        is_training=bool(train),
    )


def dropout_states(args: Any, processors: int) -> int:
    """Bytes of the states of random numbers that a layer with dropout needs; 0 without."""
    call = call_of(args, is_backward=False)
    return processors * _THREADS_OF_PROCESSOR * _STATE_OF_THREAD if call.dropout else 0


def _outer_shape(tensor: Any, batch_first: bool) -> tuple[int, ...]:
    """Steps and samples; one number for both where sequences are packed."""
    if tensor.dim() == 2:
        return (int(tensor.shape[0]),)
    first, second = int(tensor.shape[0]), int(tensor.shape[1])
    return (second, first) if batch_first else (first, second)


def backward(args: Any, fake_mode: Any, log: RequestLog) -> Any:
    """The gradients of the input, the states and the weights, of ``_cudnn_rnn_backward``; requested
    as RNN.cpp does.
    """
    tensor, weights, hidden, cell, batch_first = args[0], args[1], args[4], args[5], args[14]
    call = call_of(args, is_backward=True)
    zeros = _zeros_for_missing(args, log)
    copies = [_copy_with_steps_first(side, batch_first, log) for side in (tensor, args[7])]
    with fake_mode:
        empty = tensor.new_empty((0,))
        of_states = [
            empty if state is None else tensor.new_empty(state.shape) for state in (hidden, cell)
        ]
        of_input = tensor.new_empty(tensor.shape)
    for gradient in (of_input, *of_states):
        log.note(gradient)
    log.free(_workspace(call, log))
    for row in reversed(copies):
        _free(row, log)
    copy = _copy_with_steps_first(tensor, batch_first, log)
    with fake_mode:
        of_weights = _in_one_buffer(tensor, weights)
    log.note(of_weights[0])
    log.free(_workspace(call, log))
    _free(copy, log)
    for row in zeros:
        log.free(row)
    return of_input, *of_states, of_weights


def _zeros_for_missing(args: Any, log: RequestLog) -> list[int]:
    """The rows of zeros in place of gradients that are not there: of the output and the states."""
    sources = args[6], args[4], args[5]
    missing = zip(sources, args[7:10], strict=True)
    return [
        log.allocate(source.nbytes)
        for source, gradient in missing
        if source is not None and gradient is None
    ]


def _in_one_buffer(tensor: Any, weights: Any) -> list[Any]:
    """Tensors of the weights' shapes in one of them all (_cudnn_rnn_backward_weight)."""
    buffer = tensor.new_empty((sum(weight.numel() for weight in weights),))
    sizes = [weight.numel() for weight in weights]
    return [
        part.view(weight.shape) for part, weight in zip(buffer.split(sizes), weights, strict=True)
    ]


def packed_result(args: Any, fake_mode: Any, log: RequestLog) -> Any:
    """The numbers of all sequences, and how many sequences each step has, of
    ``_pack_padded_sequence``.

    It copies each run of steps with as many sequences, where they do not lie so already, then all
    into one tensor (aten/src/ATen/native/PackedSequence.cpp).
    """
    tensor, lengths, batch_first = args[0], [int(length) for length in args[1]], args[2]
    counts = [sum(length > step for length in lengths) for step in range(max(lengths))]
    with fake_mode:
        steps_first = tensor.transpose(0, 1) if batch_first else tensor
        data = tensor.new_empty((sum(lengths), *tensor.shape[2:]))
        runs = [steps_first[first:last, :count] for first, last, count in _runs(counts)]
    copies = [log.allocate(run.nbytes) for run in runs if not run.is_contiguous()]
    log.note(data)
    for row in copies:
        log.free(row)
    return data, torch.tensor(counts, dtype=torch.int64)


def _runs(counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """The first place, the place after the last, and the number, of each run of one number."""
    first = 0
    for count, places in groupby(counts):
        last = first + len(list(places))
        yield first, last, count
        first = last
