"""The wall that an out-of-memory failure hit, and its cause: words of output and JSON."""

from __future__ import annotations

from vramlens.ground.closed_words import ClosedWords


class Wall(ClosedWords):
    """The limit that refused a request."""

    PROCESS_LIMIT = "process_limit"
    DEVICE = "device"
    OTHER_PROCESS = "other_process"
    HOST = "host"
    UNKNOWN = "unknown"


class Cause(ClosedWords):
    """Why there was too little memory."""

    FRAGMENTATION = "fragmentation"
    LEAK = "leak"
    SPIKE = "spike"
    CAPACITY = "capacity"
