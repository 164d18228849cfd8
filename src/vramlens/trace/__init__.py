"""A recording as columns: see ``vramlens.trace.trace.Trace``."""

from vramlens.trace.device import BEFORE, Allocations, Counter, DeviceTrace, Segments
from vramlens.trace.events import Action, Events, OutOfMemory
from vramlens.trace.ledgers import DeviceLedger, LedgerPart, Ledgers
from vramlens.trace.meta import DeviceMeta, FailureMeta, GroupMeta, Meta
from vramlens.trace.names import AT_THE_END, TensorKind, TensorNames
from vramlens.trace.owners import NO_OWNER, KeptBy, Owners
from vramlens.trace.samples import Samples
from vramlens.trace.stacks import NO_STACK, Frame, Stacks
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
    "LedgerPart",
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
