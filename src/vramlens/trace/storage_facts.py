"""What is known of storages beside their events: how tensors were named, what kept them alive when
the program's objects were searched, and what a profiler's trace says of allocations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import LeakOwner

AT_THE_END = -1
NO_OWNER = -1
"""In a column: nothing that Python can see keeps it."""


class TensorKind(IntEnum):
    """What a named tensor is."""

    TENSOR = 0
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    BUFFER = 4


class ParameterUse(IntEnum):
    """What training does with a parameter, as its optimizers have it."""

    UNKNOWN = 0
    """It is none, or the program had no optimizer."""
    STEPPED = 1
    """An optimizer changes it."""
    UNSTEPPED = 2
    """Gradients are computed for it, and no optimizer changes it."""
    FROZEN = 3
    """It requires no gradients."""


@dataclass(frozen=True, eq=False)
class TensorNames:
    """One row a storage that was alive when it was named.

    Attributes:
        device: its index.
        address, size_bytes: of the storage.
        kind: a TensorKind.
        use: a ParameterUse.
        time_us: when it was named, in microseconds since the epoch; AT_THE_END for the moment of
            the dump.
        name: ``model.blocks.3.attn.qkv.weight``, ``grad[model.blocks.3.attn.qkv.weight]``.
        dtype: of parameters and buffers, the type of their elements, such as ``bfloat16``; "" where
            nobody knows.
        parts: of parameters that are DTensors, how many ranks have a part of each; 0 of others.
        kept_by: the cache that leads to a parameter's model, or the attributes by which the objects
            that hold such tensors lead to each other; "" where nobody knows.
        unfrozen: of parameters that require gradients, the module around each that has ``requires_grad =
            False`` as an attribute, which freezes nothing; "" of others.
        shape: of tensors that are none of a model's or an optimizer's, type and sizes, such as
            ``float32[4096, 1]``; "" of others.
        circle: of what only garbage kept until Python's collector would have run, the circle of
            objects that did, such as ``Node.children[0].parent``; "" of others.
        frozen: of parameters that an optimizer has, whether each requires no gradients; False of
            others.
        in_graph: of tensors that are no parameters or optimizer's states, whether an autograd graph
            made each, and is kept with it; False of others.
    """

    device: NDArray[np.int32]
    address: NDArray[np.uint64]
    size_bytes: NDArray[np.int64]
    kind: NDArray[np.uint8]
    use: NDArray[np.uint8]
    time_us: NDArray[np.int64]
    name: tuple[str, ...]
    dtype: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()
    kept_by: tuple[str, ...] = ()
    unfrozen: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    circle: tuple[str, ...] = ()
    frozen: tuple[bool, ...] = ()
    in_graph: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.name)


NO_TENSORS = TensorNames(
    device=np.zeros(0, np.int32),
    address=np.zeros(0, np.uint64),
    size_bytes=np.zeros(0, np.int64),
    kind=np.zeros(0, np.uint8),
    use=np.zeros(0, np.uint8),
    time_us=np.zeros(0, np.int64),
    name=(),
)
"""Of a recording that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBy(LeakOwner):
    """What keeps memory: a list, an attribute, a hook; and what the process said of it.

    Attributes:
        leak_class: the contract's class; None for what does not grow.
        verdict: what the process judged; None for what does not grow.
        fix: what to do; None where nothing needs doing.
        fix_share: how much of its bytes that frees, from 0 to 1.
        is_freed: of graphs: whether backward passes have freed what they saved.
    """

    leak_class: str | None
    verdict: Verdict | None
    fix: str | None
    fix_share: float = 1.0
    is_freed: bool = False


@dataclass(frozen=True, eq=False)
class Owners:
    """What a search of the program found; one row of the columns a storage.

    Attributes:
        time_us: when it ran, in microseconds since the epoch; None where the recording does not
            say.
        complete: whether the search went to the end.
        skipped: what it left out, one sentence each.
        owners: those found.
        device, address, size_bytes: of each storage.
        owner: its row of ``owners``; NO_OWNER where Python shows none.
    """

    time_us: int | None
    complete: bool
    skipped: tuple[str, ...]
    owners: tuple[KeptBy, ...]
    device: NDArray[np.int32]
    address: NDArray[np.uint64]
    size_bytes: NDArray[np.int64]
    owner: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class AllocationFacts:
    """One row an allocation of a device.

    Attributes:
        category, certainty, phase: numbers of ``analyses.attribution``'s Category, Certainty and
            Phase.
        frame: the user's function as a frame id; -1 where there is none.
        inferred: whether that function is the one whose backward was running.
    """

    category: NDArray[np.uint8]
    certainty: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    frame: NDArray[np.int64]
    inferred: NDArray[np.bool_]
