"""What was learned, handed from one run of a program to the next."""

from __future__ import annotations

import json
import os
from typing import Any

from vramlens.whole_file import whole_file

MICRO_BATCH = "VRAMLENS_MICRO_BATCH"
"""The environment variable with the most samples that a part may have."""
SPLIT_FILE = "VRAMLENS_SPLIT_FILE"
"""The environment variable with the file that a guard writes its split to, for a supervisor to
read.
"""


def learned_micro_batch() -> int | None:
    """Samples in a part, as an earlier run has learned; None where none has, or where the text
    is not a number from 1.
    """
    text = os.environ.get(MICRO_BATCH, "").strip()
    if not text:
        text = str(read_split().get("micro_batch") or "")
    return int(text) if text.isascii() and text.isdecimal() and int(text) >= 1 else None


def write_split(**facts: Any) -> None:
    """Leaves facts for whoever restarts this program; does nothing where nobody asked."""
    path = os.environ.get(SPLIT_FILE)
    if not path:
        return
    try:
        merged = read_split()
        # Ranks share the file: the smallest part wins.
        sizes = [
            size
            for size in (merged.get("micro_batch"), facts.get("micro_batch"))
            if isinstance(size, int)
        ]
        merged.update(facts)
        if sizes:
            merged["micro_batch"] = min(sizes)
        with whole_file(path) as file:
            file.write(json.dumps(merged).encode())
    except OSError:
        pass


def read_split(path: str | None = None) -> dict[str, Any]:
    """What was left; empty where there is nothing to read."""
    path = path or os.environ.get(SPLIT_FILE)
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            facts = json.loads(file.read(65_536))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
