"""Prints who holds the memory of a recording at its peak, and what a failure was about.

    python examples/peak_by_line.py [snapshot.pickle]

Without an argument it takes the recording that ships with vramlens.
"""

from __future__ import annotations

import sys

import vramlens
from vramlens.api import example_path
from vramlens.units import format_size

recording = vramlens.load(sys.argv[1] if len(sys.argv) > 1 else example_path())

verdict = recording.oom()
if verdict is not None:
    print(verdict.headline)

peak = recording.peak()
print(f"peak: {format_size(peak.requested_bytes)} in step {peak.step}")
for line in peak.by_line[:5]:
    likely = f", of which {format_size(line.inferred_bytes)} likely" if line.inferred_bytes else ""
    print(f"{format_size(line.bytes):>12}  {line.place}  ({line.category}{likely})")
