"""The live tensors of a predicted program: they have rows of the request log, and no addresses."""

from __future__ import annotations

import gc
import inspect
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from vramlens.capture.names.live_heap import LiveHeap, TensorStorage
from vramlens.ground.program_errors import let_through
from vramlens.prediction.requests.request_log import is_of_prediction

if TYPE_CHECKING:
    from vramlens.prediction.requests.request_log import RequestLog
    from vramlens.prediction.tensors.known_values import KnownValues

_DEVICE = 0
_CHUNK = 1024
_REFERENCES_OF_COPY = 3
"""To the dict of a function's variables: its frame's, ours and that of the question. The program has it where
there are more (``locals()``).
"""


class PredictedHeap(LiveHeap):
    """The program's objects, with the row of each storage's request in place of its address."""

    def __init__(self, log: RequestLog, torch: Any, device_type: str, objects: list[Any]) -> None:
        from torch._subclasses.fake_tensor import FakeTensor

        super().__init__(torch, device_type, objects)
        self._log, self._fake_tensor = log, FakeTensor

    def is_plain(self, tensor: Any) -> bool:
        """True also where a tensor is plain on a GPU, and has a shape only here."""
        return type(tensor) is self._fake_tensor or super().is_plain(tensor)

    def storage(self, tensor: Any) -> TensorStorage | None:
        """The tensor's own storage on the device, its row counted from 1; None where it was never
        requested.
        """
        try:
            row = self._log.row_of(tensor)
            if row is None:
                return None
            offset = self.tensor.storage_offset(tensor) if self.is_plain(tensor) else 0
        except Exception as error:
            let_through(error)
            return None
        return TensorStorage(_DEVICE, row + 1, self._log.sizes[row], offset)


class NamedHeap(PredictedHeap):
    """The same for names: what the program holds comes before what a prediction does."""

    def __init__(self, log: RequestLog, torch: Any, device_type: str, objects: list[Any]) -> None:
        super().__init__(log, torch, device_type, _as_on_a_gpu(objects))


class KnownHeap(PredictedHeap):
    """The same with the address of a tensor's values on the host, where they are known."""

    def __init__(
        self,
        log: RequestLog,
        values: KnownValues,
        torch: Any,
        device_type: str,
        objects: list[Any],
    ) -> None:
        super().__init__(log, torch, device_type, objects)
        self._values = values

    def storage(self, tensor: Any) -> TensorStorage | None:
        """Where the values of a tensor on the device are; None where they are not known."""
        if super().storage(tensor) is None:
            return None
        values = self._values.of(tensor)
        if values is None or not values.is_contiguous():
            return None
        storage = values.untyped_storage()
        return TensorStorage(_DEVICE, storage.data_ptr(), storage.nbytes(), values.storage_offset())


def _as_on_a_gpu(objects: list[Any]) -> list[Any]:
    """The objects without what functions of a prediction hold while they run. Of tensors those come last
    that C++ alone keeps: on a GPU few of them have an object of Python's.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    own_objects, users_objects = _objects_of_frames()
    remaining = [candidate for candidate in objects if id(candidate) not in own_objects]
    tensors = {id(candidate) for candidate in remaining if type(candidate) is FakeTensor}
    reachable = tensors & users_objects
    for first in range(0, len(remaining), _CHUNK):
        reachable |= tensors.intersection(
            map(id, gc.get_referents(*remaining[first : first + _CHUNK]))
        )
    unreachable = tensors - reachable
    return sorted(remaining, key=lambda each: id(each) in unreachable)


def _objects_of_frames() -> tuple[set[int], set[int]]:
    """The identities of what the functions that run hold: those of a prediction, and the program's.

    Containers that a function of ours was given, as its arguments, are its own.
    """
    own_objects: set[int] = set()
    users_objects: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        values = _values_of(frame)
        if is_of_prediction(frame.f_code.co_filename):
            own_objects.update(id(value) for value in values if type(value) in (list, tuple, dict))
        else:
            users_objects.update(map(id, values))
        frame = frame.f_back
    return own_objects - users_objects, users_objects


def _values_of(frame: FrameType) -> list[Any]:
    """What a function that runs holds, and no longer than it does: until Python 3.13 a frame keeps the dict that
    shows its variables, and with it what the function lets go of later.
    """
    variables = frame.f_locals
    values = list(variables.values())
    is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13)
    if is_copy and sys.getrefcount(variables) <= _REFERENCES_OF_COPY:
        variables.clear()
    return values
