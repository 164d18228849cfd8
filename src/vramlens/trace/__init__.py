"""A recording as columns: see ``vramlens.trace.trace.Trace``.

device: one device's part: its events, and what became of each allocation and segment.
events: events of one device, in order.
flight: a flight record.
measurements: ledgers and samples.
meta: what a recording of vramlens' own says about itself.
profile: a profiler trace as columns.
rank_error: an error file: what a rank that torchrun started said when its program raised.
stacks: runs of frames, innermost first, each stored once.
storage_facts: names and owners of storages, and what a profiler says of allocations.
strings: interned text: a recording names each file, function and region once.
trace: a Trace: everything that a recording tells, as columns.
engine_log: what serving engines and NCCL say of their own memory.
"""

from vramlens.trace.device import BEFORE, Allocations, Counter, DeviceTrace, Segments
from vramlens.trace.events import Action, Events, OutOfMemory
from vramlens.trace.measurements import DeviceLedger, DeviceProcess, Ledgers, Samples
from vramlens.trace.meta import (
    DecisionsMeta,
    DeviceMeta,
    FailureMeta,
    GroupMeta,
    IgnoredLabels,
    Meta,
    PaddedBatch,
    RowLengths,
    WholeRunMeta,
)
from vramlens.trace.stacks import NO_STACK, Frame, Stacks
from vramlens.trace.storage_facts import (
    AT_THE_END,
    NO_OWNER,
    NO_TENSORS,
    KeptBy,
    Owners,
    ParameterUse,
    TensorKind,
    TensorNames,
)
from vramlens.trace.strings import NO_TEXT, Strings
from vramlens.trace.trace import Annotations, SideColumn, Trace

__all__ = [
    "AT_THE_END",
    "BEFORE",
    "NO_OWNER",
    "NO_STACK",
    "NO_TENSORS",
    "NO_TEXT",
    "Action",
    "Allocations",
    "Annotations",
    "Counter",
    "DecisionsMeta",
    "DeviceLedger",
    "DeviceMeta",
    "DeviceProcess",
    "DeviceTrace",
    "Events",
    "FailureMeta",
    "Frame",
    "GroupMeta",
    "IgnoredLabels",
    "KeptBy",
    "Ledgers",
    "Meta",
    "OutOfMemory",
    "Owners",
    "PaddedBatch",
    "ParameterUse",
    "RowLengths",
    "Samples",
    "Segments",
    "SideColumn",
    "Stacks",
    "Strings",
    "TensorKind",
    "TensorNames",
    "Trace",
    "WholeRunMeta",
]
