"""What an out-of-memory failure hit, and why it came to that: the words that output and JSON share."""

from __future__ import annotations

from vramlens.ground.closed_words import ClosedWords


class Wall(ClosedWords):
    """What refused a request."""

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
