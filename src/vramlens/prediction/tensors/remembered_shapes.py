"""The shapes that an operator returned before for arguments of the same shapes.

A prediction runs the same operators over and over. PyTorch remembers their shapes, too, but asking
it costs most of a prediction's time (torch/_subclasses/fake_tensor.py, _cached_dispatch_impl). An
operator is remembered where each result is an argument, a view of one, or a tensor with a storage
of its own; what changes the shape of an argument is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MOST_REMEMBERED = 200_000
_VALUE_TYPES = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class _ArgumentResult:
    """A result that is an argument itself."""

    place: int


@dataclass(frozen=True, slots=True)
class _TensorResult:
    """A result with a storage of its own, or a view of an argument.

    Attributes:
        viewed: the place of the argument whose storage it shares; None where it has its own.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Any
    device: Any
    viewed: int | None


_Result = _ArgumentResult | _TensorResult | None


class RememberedShapes:
    """The results of operators by their arguments' shapes."""

    def __init__(self, fake_mode: Any, fake_tensor: Any) -> None:
        self._fake_mode, self._fake_tensor = fake_mode, fake_tensor
        self._results: dict[Any, tuple[_Result, ...]] = {}
        self._forms: dict[Any, type] = {}

    def key_of(self, operator: Operator, args: Any, kwargs: Any, tensors: list[Any]) -> Any | None:
        """What the shapes of a call's results hang on; None where they may hang on more."""
        if not operator.keeps_arguments or not all(map(self._is_plain, tensors)):
            return None
        try:
            values = self._part(args), self._part(tuple(kwargs.items()))
        except TypeError:
            return None
        return (
            operator.function,
            values,
            torch.get_default_dtype(),
            torch.is_inference_mode_enabled(),
        )

    def results(self, key: Any, tensors: list[Any]) -> tuple[Any] | None:
        """The results of a call, in a tuple of one; None where it was not seen before."""
        remembered = self._results.get(key)
        if remembered is None:
            return None
        with torch._C._DisableTorchDispatch():
            new_results = [self._made(result, tensors) for result in remembered]
        form = self._forms[key]
        return (form(new_results) if form in (tuple, list) else new_results[0],)

    def remember(
        self, key: Any, operator: Operator, call: tuple[Any, Any], tensors: list[Any], output: Any
    ) -> None:
        """Notes what a call returned.

        Args:
            call: its arguments, by place and by name.
        """
        if len(self._results) >= _MOST_REMEMBERED:
            return
        if self.key_of(operator, *call, tensors) != key:
            return  # it changed the shape of an argument
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        try:
            self._results[key] = tuple(self._result(value, tensors) for value in outputs)
        except TypeError:
            return
        self._forms[key] = type(output)

    def _is_plain(self, tensor: Any) -> bool:
        if type(tensor) is not self._fake_tensor or tensor.layout is not torch.strided:
            return False
        return not tensor.dtype.is_complex

    def _part(self, value: Any) -> Any:
        """A part of a key; numbers that are equal but of different types are different.

        Raises:
            TypeError: the value may hold what decides shapes and is not seen here.
        """
        if isinstance(value, self._fake_tensor):
            place = value.shape, value.stride(), value.storage_offset()
            return place, value.dtype, value.fake_device
        if isinstance(value, (tuple, list)):
            return tuple(map(self._part, value))
        if isinstance(value, _VALUE_TYPES):
            return type(value), value
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return value
        raise TypeError

    def _result(self, value: Any, tensors: list[Any]) -> _Result:
        """How a result is made again.

        Raises:
            TypeError: it cannot be.
        """
        if value is None:
            return None
        if not self._is_plain(value):
            raise TypeError
        for place, tensor in enumerate(tensors):
            if tensor is value:
                return _ArgumentResult(place)
        storage = value.untyped_storage()
        viewed = next(
            (
                place
                for place, tensor in enumerate(tensors)
                if tensor.untyped_storage()._cdata == storage._cdata
            ),
            None,
        )
        result = _TensorResult(
            shape=tuple(value.shape),
            strides=value.stride(),
            offset=value.storage_offset(),
            dtype=value.dtype,
            device=value.fake_device,
            viewed=viewed,
        )
        if (
            viewed is None
            and self._made(result, tensors).untyped_storage().nbytes() != storage.nbytes()
        ):
            raise TypeError
        return result

    def _made(self, result: _Result, tensors: list[Any]) -> Any:
        if result is None:
            return None
        if isinstance(result, _ArgumentResult):
            return tensors[result.place]
        if result.viewed is None:
            content = self._content(result)
        else:
            viewed = tensors[result.viewed]
            with torch.inference_mode(viewed.is_inference()):  # a view is of its tensor's kind
                content = self._content(result)
                storage = viewed.untyped_storage()
                content.set_(storage, result.offset, result.shape, result.strides)
        return self._fake_tensor(self._fake_mode, content, result.device)

    @staticmethod
    def _content(result: _TensorResult) -> Any:
        return torch.empty_strided(result.shape, result.strides, dtype=result.dtype, device="meta")
