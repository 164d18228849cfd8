"""A recording as columns: see ``vramlens.trace.trace.Trace``.

allocation_facts: what a profiler's trace says of allocations.
device: one device's part: its events, and what became of each allocation and segment.
events: events of one device, in order.
flight: a flight record.
ledgers: ledgers as they were measured in the program.
meta: what a recording of vramlens' own says about itself.
storage_names: names of tensors.
owners: what kept memory alive when the program's objects were searched.
profile: a profiler trace as columns.
rank_error: an error file: what a rank that torchrun started said when its program raised.
samples: the counters now and then over a whole run, which outlast the ring of events.
stacks: runs of frames, innermost first, each stored once.
strings: interned text: a recording names each file, function and region once.
trace: a Trace: everything that a recording tells, as columns.
engine_log: what serving engines and NCCL say of their own memory.
"""

from vramlens.trace.device import BEFORE, Allocations, Counter, DeviceTrace, Segments
from vramlens.trace.events import Action, Events, OutOfMemory
from vramlens.trace.ledgers import DeviceLedger, Ledgers
from vramlens.trace.meta import DeviceMeta, FailureMeta, GroupMeta, Meta
from vramlens.trace.owners import NO_OWNER, KeptBy, Owners
from vramlens.trace.samples import Samples
from vramlens.trace.stacks import NO_STACK, Frame, Stacks
from vramlens.trace.storage_names import AT_THE_END, TensorKind, TensorNames
from vramlens.trace.strings import NO_TEXT, Strings
from vramlens.trace.trace import Annotations, SideColumn, Trace

__all__ = [
    "AT_THE_END",
    "BEFORE",
    "NO_OWNER",
    "NO_STACK",
    "NO_TEXT",
    "Action",
    "Allocations",
    "Annotations",
    "Counter",
    "DeviceLedger",
    "DeviceMeta",
    "DeviceTrace",
    "Events",
    "FailureMeta",
    "Frame",
    "GroupMeta",
    "KeptBy",
    "Ledgers",
    "Meta",
    "OutOfMemory",
    "Owners",
    "Samples",
    "Segments",
    "SideColumn",
    "Stacks",
    "Strings",
    "TensorKind",
    "TensorNames",
    "Trace",
]
