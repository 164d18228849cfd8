"""Names of tensors: which storage was which parameter, gradient or buffer when the program was
looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

AT_THE_END = -1


class TensorKind(IntEnum):
    """What a named tensor is."""

    TENSOR = 0
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    BUFFER = 4


@dataclass(frozen=True, eq=False)
class TensorNames:
    """One row a storage that was alive when it was named.

    Attributes:
        device: its index.
        address, size_bytes: of the storage.
        kind: a TensorKind.
        time_us: when it was named, in microseconds since the epoch; AT_THE_END for the moment of
            the dump.
        name: ``model.blocks.3.attn.qkv.weight``, ``grad[model.blocks.3.attn.qkv.weight]``.
    """

    device: NDArray[np.int32]
    address: NDArray[np.uint64]
    size_bytes: NDArray[np.int64]
    kind: NDArray[np.uint8]
    time_us: NDArray[np.int64]
    name: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.name)
