"""Flame graphs and speedscope: bytes by stack that add up to what the recording says, in the
tools' own formats.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.recordings import block, event, read, segment, snapshot
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.memory.heap import heap_at
from vramlens.export.stack_bytes import BACKWARD, NO_FRAMES

# As flamegraph.pl takes a line apart.
LINE = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")


def collapsed(data: bytes) -> dict[tuple[str, ...], int]:
    found = {}
    for line in data.decode().splitlines():
        match = LINE.match(line)
        assert match is not None
        path = tuple(match[1].split(";"))
        assert path not in found
        found[path] = int(match[2])
    return found


def slowly(view: Attribution, event: int) -> Counter[tuple[str, ...]]:
    """Bytes by path, an allocation at a time."""
    rows, stacks = view.device.allocations, view.trace.stacks
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows.alive_after(event).tolist():
        stack = int(rows.stack[row])
        frames = stacks.of(stack)[::-1]
        path = [f"{frame.function} ({frame.file}:{frame.line})" for frame in frames]
        if not frames and view.phases.inferred[row]:
            lent = stacks.frame(int(view.phases.frame[row]))
            path = [BACKWARD, f"{lent.function} ({lent.file}:{lent.line})"]
        found[tuple(path or [NO_FRAMES])] += int(rows.requested_bytes[row])
    return found


@pytest.mark.parametrize("at", ["peak", "end"])
def test_a_flame_graph_is_the_heap_by_stack(
    view: Attribution, exported: Callable[..., bytes], at: str
) -> None:
    event = view.device.requested.peak_event if at == "peak" else len(view.device.events) - 1
    found = collapsed(exported(view.trace, "flamegraph", at=at))
    expected = {path: size for path, size in slowly(view, event).items() if size}
    assert found == expected
    assert sum(found.values()) == heap_at(view, event).requested_bytes
    if at == "peak":
        assert sum(found.values()) == view.device.requested.peak_bytes


@pytest.fixture(scope="module")
def valid() -> Callable[[Any], None]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(__file__).with_name("speedscope-schema.json").read_text())
    return jsonschema.Draft7Validator(schema).validate


def test_speedscope_takes_it(
    view: Attribution, exported: Callable[..., bytes], valid: Callable[[Any], None]
) -> None:
    found = json.loads(exported(view.trace, "speedscope", device=view.device.device))
    valid(found)
    frames = len(found["shared"]["frames"])
    for profile in found["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"]
        assert all(0 <= frame < frames for sample in profile["samples"] for frame in sample)
        assert len({tuple(sample) for sample in profile["samples"]}) == len(profile["samples"])


def test_the_schema_refuses_what_is_wrong(
    view_of: Callable[[str], Attribution],
    exported: Callable[..., bytes],
    valid: Callable[[Any], None],
) -> None:
    found = json.loads(exported(view_of("streams").trace, "speedscope"))
    del found["profiles"][0]["weights"]
    with pytest.raises(Exception, match="not valid"):
        valid(found)


def test_speedscopes_profiles_are_live_allocated_and_average(
    view: Attribution, exported: Callable[..., bytes]
) -> None:
    live, allocated, average = json.loads(
        exported(view.trace, "speedscope", device=view.device.device)
    )["profiles"]
    device = view.device
    rows = device.allocations
    assert sum(live["weights"]) == device.requested.peak_bytes
    assert sum(allocated["weights"]) == int(rows.requested_bytes[rows.born >= 0].sum())
    # The mean of the curve over time, by the area under it.
    times, curve = device.clock_us.tolist(), device.requested_curve.tolist()
    area = sum(
        size * (then - now) for size, now, then in zip(curve, times, times[1:], strict=False)
    )
    mean = area / (times[-1] - times[0])
    # Each stack's bytes are rounded down, and events of a microsecond are spread over it.
    assert sum(average["weights"]) == pytest.approx(mean, rel=1e-3, abs=len(average["weights"]) + 1)


def test_the_samples_are_the_flame_graphs(
    view_of: Callable[[str], Attribution], exported: Callable[..., bytes]
) -> None:
    trace = view_of("gpt_annotated").trace
    scope = json.loads(exported(trace, "speedscope", at="end"))
    frames = [
        f"{f['name']} ({f['file']}:{f['line']})" if "file" in f else f["name"]
        for f in scope["shared"]["frames"]
    ]
    profile = scope["profiles"][0]
    found = {
        tuple(frames[frame] for frame in sample): weight
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    }
    assert found == collapsed(exported(trace, "flamegraph", at="end"))
    assert "the end" in profile["name"]


def test_the_backward_pass_stands_below_the_lines_that_it_serves(
    view_of: Callable[[str], Attribution], exported: Callable[..., bytes]
) -> None:
    found = collapsed(exported(view_of("gpt_annotated").trace, "flamegraph"))
    lent = {path: size for path, size in found.items() if path[0] == BACKWARD}
    heap = heap_at(view_of("gpt_annotated"), view_of("gpt_annotated").device.requested.peak_event)
    assert 0 < sum(lent.values()) <= heap.inferred_bytes
    assert all(len(path) == 2 for path in lent)


def test_what_is_older_than_the_recording_was_not_allocated_in_it(
    exported: Callable[..., bytes],
) -> None:
    blocks = [block(4096, 4096, 4000), block(8192, 4096, 512)]
    trace = read(
        pickle.dumps(snapshot([event("alloc", 8192, 512)], [segment(4096, 8192, blocks)]), 4)
    )
    live, allocated, _ = json.loads(exported(trace, "speedscope"))["profiles"]
    assert sum(live["weights"]) == 4512
    assert sum(allocated["weights"]) == 512
