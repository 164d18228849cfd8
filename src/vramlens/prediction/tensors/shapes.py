"""Running with shapes: tensors on the device have no values, and everything that makes one is a
request.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.kernel_requests import Kernels
from vramlens.prediction.ranks.collective_memory import Collectives
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.tensors.counts import follow_counts
from vramlens.prediction.tensors.ended_sequences import follow_endings
from vramlens.prediction.tensors.even_choices import (
    follow_choices,
    forget_share,
    is_drawn,
    most_times,
)
from vramlens.prediction.tensors.fused_results import FusedResults
from vramlens.prediction.tensors.host_results import host_results
from vramlens.prediction.tensors.known_values import KnownValues, is_even_count, stated_size
from vramlens.prediction.tensors.operator_schema import Operator, operator_of, tensors_in
from vramlens.prediction.tensors.origins import Origins
from vramlens.prediction.tensors.random_numbers import skip_draws
from vramlens.prediction.tensors.remembered_shapes import RememberedShapes
from vramlens.prediction.tensors.sparse.sparse_gradients import SparseGradients
from vramlens.prediction.tensors.written_views import WrittenViews

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_LARGEST_ON_HOST = {True: 1 << 20, False: 32 << 20}
"""Bytes of a new floating-point tensor on the CPU that still is real, by whether it has several
dimensions: then it may be a weight, else numbers that indices are made of, such as a graph's edges.
"""
_LARGEST_DATA = 256 << 20
"""Of what is drawn evenly or by a generator of its own: masks, sizes and samples, no weights."""
_LARGEST_READ_BACK = 16 << 20
"""Bytes of a tensor that comes back to the CPU as made-up numbers; a larger one has a shape
only.
"""

_IN_ROOM_FOR_ALL = {"aten._unique2", "aten.unique_consecutive"}
"""Operators whose results lie in memory for as many numbers as there are (UniqueCub.cu)."""


def shapes_mode(log: RequestLog, kernels: Kernels, values: KnownValues) -> Any:
    """The mode under which a program runs with shapes; one for the whole program."""
    from torch._subclasses import FakeTensorMode
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    runner = OperatorRunner(
        log=log,
        kernels=kernels,
        values=values,
        fake_mode=FakeTensorMode(allow_non_fake_inputs=True),
        fake_tensor=FakeTensor,
    )
    device_of = torch.ops.prim.device.default
    one_at_a_time = threading.RLock()  # threads share PyTorch's mode for shapes

    class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is device_of and isinstance(args[0], FakeTensor):
                return args[0].fake_device
            if any(_takes_itself_apart(kind, FakeTensor) for kind in types):
                return NotImplemented  # a tensor made of tensors, such as DTensor, takes it apart
            operator = operator_of(function)
            if operator.is_composite:
                with self:  # of inference tensors; else autograd has taken it apart before
                    return operator.run_decomposed(args, kwargs or {})
            if operator.parts_key is not None and runner.has_unknown_on_card(args):
                with self:
                    return operator.run_in_parts(args, kwargs or {})
            with one_at_a_time:
                runner.written_views.catch_up(operator)
                result = runner.run(function, args, kwargs or {})
                runner.written_views.follow(operator, args)
                return result

    mode: Any = Shapes()  # type: ignore[no-untyped-call]
    mode.runner = runner
    return mode


def _takes_itself_apart(kind: Any, fake_tensor: Any) -> bool:
    """Whether a kind of tensor has a dispatch of its own; a Parameter has none."""
    is_plain = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return kind is not fake_tensor and not is_plain


class OperatorRunner:
    """Runs operators: on the CPU as they are, on the device with shapes.

    Attributes:
        notes: what was done otherwise than on a GPU, in words, with its likely bytes.
        fused: the results that a compiled program may never make.
        written_views: those whose history is about to be another.
    """

    def __init__(
        self,
        log: RequestLog,
        kernels: Kernels,
        values: KnownValues,
        fake_mode: Any,
        fake_tensor: Any,
    ) -> None:
        fake_mode.can_run_unsafe_fallback = lambda function: False  # it would run on the GPU
        self.log, self._kernels, self._values = log, kernels, values
        self.fake_mode, self.fake_tensor = fake_mode, fake_tensor
        self._pid = os.getpid()
        self.notes: dict[str, int | None] = {}
        self._remembered = RememberedShapes(fake_mode, fake_tensor)
        self._origins = Origins()
        self._collectives = Collectives(log, values, self.run)
        self.fused = FusedResults(log)
        self.written_views = WrittenViews()
        self._sparse = SparseGradients(log, values, fake_mode, self.notes)
        self._special: dict[Any, Callable[..., Any]] = {
            torch.ops.aten._local_scalar_dense.default: self._item,
            torch.ops.aten.equal.default: lambda operator, args, kwargs: (
                self._values.are_equal(*args) or self._origins.are_same(*args)
            ),
            torch.ops.aten._to_copy.default: self._to_copy,
            torch.ops.aten.copy_.default: self._copy,
            torch.ops.aten.lift_fresh.default: lambda operator, args, kwargs: args[0],
        }
        for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
            packet = getattr(torch.ops.aten, name, None)
            for overload in [] if packet is None else packet.overloads():
                self._special[getattr(packet, overload)] = lambda operator, args, kwargs: False

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What an operator returns."""
        operator = operator_of(function)
        if operator.name.startswith("c10d."):
            return self._collectives.result(operator, args)
        tensors = tensors_in(args, kwargs)
        is_fake = any(isinstance(tensor, self.fake_tensor) for tensor in tensors)
        kwargs = _without_pins(kwargs)
        device = kwargs.get("device")
        on_device = device is not None and torch.device(device).type == "cuda"
        if on_device:
            kwargs["device"] = torch.device("cuda", 0)  # this rank's, whatever its number
        if (
            not is_fake
            and not on_device
            and (tensors or not self._is_weight(operator, args, kwargs))
        ):
            return function(*args, **kwargs)
        if operator.is_random and not (on_device or any(map(self.is_on_card, tensors))):
            skip_draws(operator, args, kwargs)
        if kwargs.get("generator") is not None:  # the device's numbers are never drawn
            kwargs = {**kwargs, "generator": None}
        special = self._special.get(function)
        if special is not None:
            return special(operator, args, kwargs)
        return self._run_shapes(operator, args, kwargs, tensors)

    def is_on_card(self, tensor: Any) -> bool:
        """Whether something is a tensor of the predicted card."""
        return isinstance(tensor, self.fake_tensor) and tensor.fake_device.type == "cuda"

    def has_unknown_on_card(self, args: Any) -> bool:
        """Whether one of an operator's arguments is on the card, and its values are not known."""
        tensors = filter(self.is_on_card, tensors_in(args, {}))
        return any(self._values.of(tensor) is None for tensor in tensors)

    def note_basis(self, basis: str) -> None:
        """Notes a rule that a prediction rests on and that makes its range no wider."""
        self._kernels.uncertain[basis] = 0.0

    def stand_in(
        self, tensor: Any, device: Any, dtype: Any = None, memory_format: Any = None
    ) -> Any:
        """A tensor of the same shape on another device, without values."""
        with self.fake_mode:
            if memory_format in (None, torch.preserve_format) and _is_dense(tensor):
                return torch.empty_strided(
                    tensor.size(), tensor.stride(), dtype=dtype or tensor.dtype, device=device
                )
            chosen = (
                torch.contiguous_format
                if memory_format in (None, torch.preserve_format)
                else memory_format
            )
            return torch.empty(
                tensor.size(), dtype=dtype or tensor.dtype, device=device, memory_format=chosen
            )

    def _run_shapes(self, operator: Operator, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        sparse = self._sparse.result(operator, args, tensors)
        if sparse is not None:
            self._note([sparse])
            return sparse
        accumulated = self._kernels.accumulated(operator, args, tensors)
        if accumulated is not None:
            self._kernels.after(operator, args, kwargs, [accumulated])
            return accumulated
        computed = self._values.computed_first(operator, args, kwargs, tensors)
        self._kernels.before(operator, args, kwargs)
        if computed is not None:
            result = self._with_values(operator, args, kwargs, computed)
            self._kernels.after(operator, args, kwargs, tensors_in((result,), {}))
            return result
        call = self._remembered.key_of(operator, args, kwargs, tensors)
        output = self._output(operator, args, kwargs, call)
        outputs = tensors_in((output,), {})
        if not self._kernels.noted(operator, args, outputs):
            self._note(self._kernels.on_device(operator, outputs))
        if self.log.guessed:
            self._spread_guesses(operator, tensors, outputs)
        self.fused.follow(operator, tensors, outputs)
        follow_endings(operator, args, tensors, outputs, self._values.is_known)
        follow_counts(operator, args, outputs)
        self._values.follow(operator, args, kwargs, tensors, output)
        follow_choices(operator, args, outputs, self._values.deviation, self.log.note_draw)
        self._origins.follow(operator, call, tensors, outputs)
        self._kernels.after(operator, args, kwargs, outputs)
        return output

    def _output(self, operator: Operator, args: Any, kwargs: Any, call: Any | None) -> Any:
        """What an operator returns: shapes as PyTorch says them, or as its kernel for the CPU
        makes them.

        Args:
            call: what the shapes hang on, where they can be remembered.
        """
        from torch._subclasses import fake_tensor as shapes
        from torch.utils._pytree import tree_map_only

        make_result = self._kernels.own_result(operator, args, self.fake_mode)
        if make_result is not None:
            return make_result()
        tensors = tensors_in(args, kwargs)
        remembered = None if call is None else self._remembered.results(call, tensors)
        if remembered is not None:
            return remembered[0]
        try:
            output = self._shapes_of_pytorch(operator, args, kwargs, is_new=call is not None)
            if call is not None:
                self._remembered.remember(call, operator, (args, kwargs), tensors, output)
            return output
        except (
            NotImplementedError,
            shapes.UnsupportedOperatorException,
            shapes.DynamicOutputShapeException,
            shapes.DataDependentOutputException,
        ):
            if operator.written and not operator.out_names:
                return args[operator.written[0]] if operator.function._schema.returns else None
            results = host_results(operator, args, kwargs, self._values)
        if operator.out_names:
            return self._written_to_outs(operator, kwargs, results)
        device = next(
            tensor.fake_device
            for tensor in tensors_in(args, kwargs)
            if isinstance(tensor, self.fake_tensor)
        )
        self.notes[f"{operator.name}: what its kernel allocates beside its results"] = None
        return tree_map_only(torch.Tensor, lambda value: self.stand_in(value, device), results)

    def _shapes_of_pytorch(
        self, operator: Operator, args: Any, kwargs: Any, *, is_new: bool
    ) -> Any:
        """What PyTorch says. Its cache keeps the arguments as a key: storages would never be freed.

        Args:
            is_new: whether the answer will be remembered here: its cache would not be asked again.
        """
        was_enabled = self.fake_mode.cache_enabled
        if is_new or any(isinstance(value, torch.UntypedStorage) for value in args):
            self.fake_mode.cache_enabled = False
        try:
            with self.fake_mode:
                return operator.function(*args, **kwargs)
        finally:
            self.fake_mode.cache_enabled = was_enabled

    def _written_to_outs(self, operator: Operator, kwargs: Any, results: Any) -> Any:
        """The tensors that an operator was given for its results (out=), of the results' shapes."""
        outs = tuple(kwargs[name] for name in operator.out_names)
        for out, result in zip(outs, tensors_in((results,), {}), strict=True):
            with self.fake_mode:
                out.resize_(result.shape)
        return outs if len(outs) > 1 else outs[0]

    def _note(self, outputs: list[Any]) -> None:
        for tensor in outputs:
            if self.is_on_card(tensor):
                for part in strided_parts(tensor):
                    self.log.note(part)

    def _spread_guesses(self, operator: Operator, inputs: list[Any], outputs: list[Any]) -> None:
        """Results that have a guessed number of rows, as what they are made of, hang on it, too."""
        for source in inputs:
            guess = None if source.layout is not torch.strided else self.log.guess_of(source)
            if guess is None:
                continue
            sizes = _guessed_sizes(source.shape, guess[0])
            for tensor in outputs:
                if not sizes.isdisjoint(tensor.shape):
                    self.log.hangs_on_guess(tensor, *guess)
                elif operator.name == "aten.slice" and guess[0] in source.shape:
                    self.log.hangs_on_part(
                        tensor, int(tensor.shape[_sliced_dimension(source, tensor)])
                    )

    def _with_values(self, operator: Operator, args: Any, kwargs: Any, known: Any) -> Any:
        """Stand-ins for results that were computed, on the device of the inputs."""
        tensors = tensors_in(args, kwargs)
        device = next(
            (t.fake_device for t in tensors if isinstance(t, self.fake_tensor)),
            torch.device("cuda", 0),
        )

        is_known = all(map(self._values.is_known, tensors))
        is_sure = is_known or any(map(is_drawn, tensors))
        hangs_on_values = not is_sure and stated_size(operator, args, kwargs) is None
        room = tensors[0].numel() if tensors else 0

        def stand_in(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            copy = self.stand_in(value, device)
            if operator.name in _IN_ROOM_FOR_ALL and value.numel():
                copy = copy.new_empty(room).resize_(value.shape)
            self._note([copy])
            is_usable = is_known or is_even_count(operator, args)
            if is_usable and self._values.is_worth(copy):
                self._values.set(copy, value)
            if hangs_on_values and copy.dim():
                self.log.hangs_on_guess(copy, int(copy.shape[0]), max(map(most_times, tensors)))
            return copy

        if isinstance(known, (tuple, list)):
            return type(known)(stand_in(value) for value in known)
        return stand_in(known)

    def read_back(self, tensor: Any) -> Any:
        """A tensor's values on the CPU, made up where they are not known: of a large one, one
        number for all.
        """
        values = self._read_back(tensor, self._values.of(tensor), None, None)
        if not isinstance(values, self.fake_tensor):
            return values
        number = torch.ones if tensor.is_floating_point() else torch.zeros
        return number((), dtype=tensor.dtype).expand(tensor.shape)

    def _is_weight(self, operator: Operator, args: Any, kwargs: Any) -> bool:
        """Whether a new tensor on the CPU would be large and of floating-point numbers. Those of a
        loader's worker are data: it sends them on.
        """
        if os.getpid() != self._pid:
            return False
        if not args or not isinstance(args[0], (list, tuple)):
            return False
        if torch.device(kwargs.get("device") or "cpu").type != "cpu":
            return False
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if not (dtype.is_floating_point or dtype.is_complex):
            return False
        if not all(isinstance(size, int) for size in args[0]):
            return False
        is_data = operator.name == "aten.rand" or kwargs.get("generator") is not None
        most_bytes = _LARGEST_DATA if is_data else _LARGEST_ON_HOST[len(args[0]) > 1]
        return bool(math.prod(args[0]) * dtype.itemsize > most_bytes)

    def _item(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        self.log.note_wait()
        return self._values.number(args[0])

    def _to_copy(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        source = args[0]
        device = kwargs.get("device")
        source_device = (
            source.fake_device if isinstance(source, self.fake_tensor) else source.device
        )
        target = source_device if device is None else torch.device(device)
        if target.type == source_device.type:
            tensors = [source]
            return self._run_shapes(operator, args, kwargs, tensors)
        if source.layout is not torch.strided:
            return self._sparse.copied(
                source, lambda part: self._to_copy(operator, (part,), {"device": target})
            )
        dtype, layout = kwargs.get("dtype"), kwargs.get("memory_format")
        content = self._values.of(source)
        is_asynchronous = bool(kwargs.get("non_blocking"))
        if not is_asynchronous:
            self.log.note_wait()
        if target.type == "cpu":
            lies_apart = not (_is_dense(source) or source.is_contiguous())
            self.log.scratch(source.nbytes if lies_apart else 0)
            return self._read_back(source, content, dtype, layout)
        stand_in = self.stand_in(source, torch.device("cuda", 0), dtype, layout)
        self._note([stand_in])
        self.log.scratch(_bytes_beside_copy(source, stand_in, non_blocking=is_asynchronous))
        if content is not None and self._values.is_worth(stand_in):
            self._values.set(stand_in, content.to(stand_in.dtype, copy=True))
        return stand_in

    def _read_back(self, source: Any, value: Any, dtype: Any, layout: Any) -> Any:
        if value is not None:
            return value.to(dtype or value.dtype, copy=True)
        self._values.asked.note()
        if source.numel() * source.element_size() > _LARGEST_READ_BACK:
            return self.stand_in(source, torch.device("cpu"), dtype, layout)
        made_up = torch.ones if source.is_floating_point() else torch.zeros
        return made_up(source.size(), dtype=dtype or source.dtype)

    def _copy(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        target, source = args[0], args[1]
        if isinstance(target, self.fake_tensor):
            self._values.overwritten(target, source)
            self._origins.written([target])
            forget_share(target)
        elif isinstance(source, self.fake_tensor):
            if not any(args[2:]) and not kwargs.get("non_blocking"):
                self.log.note_wait()
            content = self._values.of(source)
            if content is not None:
                target.copy_(content)
        return target


def _guessed_sizes(shape: Sequence[int], number: int) -> set[int]:
    """The sizes of a tensor that hang on a guessed number: it, or where two dimensions are laid
    together, a multiple.
    """
    if number in shape:
        return {number}
    return {size for size in shape if number > 1 and size and size % number == 0}


def _sliced_dimension(source: Any, part: Any) -> int:
    """The first dimension in which a part is smaller than the whole."""
    sizes = zip(source.shape, part.shape, strict=True)
    return next((place for place, (whole, own) in enumerate(sizes) if own < whole), 0)


def _bytes_beside_copy(source: Any, result: Any, *, non_blocking: bool) -> int:
    """What the card holds beside its copy of a host's tensor: what differs in type or in the order
    of its numbers goes through a contiguous copy.

    aten/src/ATen/native/cuda/Copy.cu (copy_requires_temporaries, copy_kernel_cuda): types are
    changed on the card where the copy is asynchronous, else on the host.
    """
    has_type = source.dtype is result.dtype
    if has_type and source.stride() == result.stride():
        return 0
    if result.is_contiguous() and (has_type or not non_blocking):
        return 0
    return int(source.numel() * (source if non_blocking else result).element_size())


def _is_dense(tensor: Any) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _without_pins(kwargs: Any) -> Any:
    """An operator's arguments without pinned memory, which a driver would have to make."""
    return {**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs


def strided_parts(tensor: Any) -> list[Any]:
    """The tensors with a storage of their own that a tensor is made of."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return []
