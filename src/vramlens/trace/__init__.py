"""A recording as columns: see ``vramlens.trace.trace.Trace``."""

from vramlens.trace.device import BEFORE, Allocations, Counter, DeviceTrace, Segments
from vramlens.trace.events import Action, Events, OutOfMemory
from vramlens.trace.stacks import NO_STACK, Frame, Stacks
from vramlens.trace.strings import NO_TEXT, Strings
from vramlens.trace.trace import Annotations, SideColumn, Trace

__all__ = [
    "BEFORE",
    "NO_STACK",
    "NO_TEXT",
    "Action",
    "Allocations",
    "Annotations",
    "Counter",
    "DeviceTrace",
    "Events",
    "Frame",
    "OutOfMemory",
    "Segments",
    "SideColumn",
    "Stacks",
    "Strings",
    "Trace",
]
