"""Writes the pages that the browser tests open, and what they must find on them.

    python viewer/tests/pages.py FOLDER

Each page lies beside a JSON file: at some event, the allocations as a slow layout stacks them (by category, then by
birth), and for some of them what the page must say when they are pointed at.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "view")]
if any(
    (ROOT / "src" / "vramlens").glob("libvramlens.*")
):  # else the package that is installed: it has the native core
    sys.path.insert(0, str(ROOT / "src"))

from test_collectives import START_US, flight_of, made_of, marked  # noqa: E402
from test_page import EVIL, hostile  # noqa: E402

from support.recordings import DATA, block, dump_slowly, event, read, segment, snapshot  # noqa: E402
from vramlens import api  # noqa: E402
from vramlens.analyses.attribution.attribution import Attribution, attribute  # noqa: E402
from vramlens.analyses.attribution.categories import Category  # noqa: E402
from vramlens.analyses.compare.compared_run import run_of  # noqa: E402
from vramlens.analyses.compare.run_diff import diff_runs  # noqa: E402
from vramlens.replay import replay_trace  # noqa: E402
from vramlens.report.diff.story import headline  # noqa: E402
from vramlens.trace import Trace  # noqa: E402
from vramlens.units import format_size  # noqa: E402
from vramlens.view.columns import Columns  # noqa: E402
from vramlens.view.page import Choices, data_of, one_file, title_of  # noqa: E402
from vramlens.view.texts import one_line, words  # noqa: E402
from vramlens.view.timeline.collective_calls import RankFlight  # noqa: E402
from vramlens.view.timeline.what_if_lines import lines_of  # noqa: E402

AT = 1 << 40
ORDER = (
    "parameters",
    "optimizer_state",
    "workspace",
    "gradients",
    "activations",
    "temporaries",
    "other",
)


def stacked(view: Attribution, event: int) -> list[tuple[int, int, list[int]]]:
    """Rows alive after an event from the bottom of the picture to its top.

    Each with the bytes of the categories below its own, and with the sizes of those of its own that are older.
    """
    rows = view.device.allocations
    found, below = [], 0
    for name in ORDER:
        older: list[int] = []
        for row in range(len(rows)):
            if (
                rows.born[row] <= event < rows.died[row]
                and Category(view.categories.category[row]).name.lower() == name
            ):
                found.append((row, below, list(older)))
                older.append(int(rows.requested_bytes[row]))
        below += sum(older)
    return found


def probes(view: Attribution, event: int) -> list[dict[str, Any]]:
    """The largest, a middling and a small allocation, and what the page must say of each."""
    rows, stacks = view.device.allocations, view.trace.stacks
    pile = sorted(stacked(view, event), key=lambda piece: -rows.requested_bytes[piece[0]])
    found = []
    for row, below, older in {
        index: pile[index] for index in (0, 1, len(pile) // 2, len(pile) - 1) if index < len(pile)
    }.values():
        size = int(rows.requested_bytes[row])
        if size < 64:
            continue
        place = view.place(int(view.phases.frame[row]))
        frames = stacks.of(int(rows.stack[row]))
        found.append(
            {
                "row": row,
                "size": format_size(size),
                "address": hex(int(rows.address[row])),
                "line": f"{one_line(place.file)}:{place.line} in {one_line(place.function)}"
                if place
                else None,
                "frames": [one_line(frame.function) for frame in frames[:200]],
                "low": max(0, below + sum(older) - 8 * size),
                "high": below + sum(older) + 8 * size,
                "bytes": size,
                "below": below,
                "older": older,
            }
        )
    return found


def write(
    folder: Path,
    name: str,
    sources: list[Any],
    flights: list[RankFlight | None] | None = None,
    ranks: tuple[int, ...] = (),
    **choices: Any,
) -> None:
    """A page about some recordings, and what it must say."""
    data = data_of(sources, Choices(**choices), flights or (), ranks)
    (folder / f"{name}.html").write_text(one_file(data, title_of(sources)), encoding="utf-8")
    trace = sources[0]
    device = trace.devices[trace.main_device]
    view = attribute(trace, device)
    failures = device.out_of_memory
    peak = device.requested.peak_event
    expected = {
        "event": peak,
        "events": len(device.events),
        "failed_event": failures[-1].event if failures else None,
        "probes": probes(view, peak) if peak >= 0 and len(device.allocations) < 50_000 else [],
        "peak": format_size(device.requested.peak_bytes),
        **(replayed(trace, choices["confs"]) if "confs" in choices else {}),
    }
    (folder / f"{name}.json").write_text(json.dumps(expected), encoding="utf-8")


def replayed(trace: Trace, confs: tuple[str, ...]) -> dict[str, Any]:
    """What is reserved after some events, as recorded and under each setting, and the sentence about each."""
    device = trace.devices[trace.main_device]
    rows = replay_trace(trace, confs=confs, curves=True).what_if
    at = [100, len(device.events) // 2, len(device.events) - 2, len(device.events) - 1]
    lines = []
    for row in rows:
        died = row.curve.died_event
        after = row.curve.after(np.array(at)).tolist()
        lines.append(
            {
                "conf": row.settings.conf or "PyTorch's default",
                "after": [
                    "out of memory" if died is not None and event > died else format_size(size)
                    for event, size in zip(at, after, strict=True)
                ],
            }
        )
    words = [one["words"] for one in lines_of(trace, device.device, confs, Columns())]
    recorded = [format_size(size) for size in device.reserved_curve[at].tolist()]
    return {"at": at, "lines": lines, "recorded": recorded, "words": words}


def evil_flight() -> RankFlight:
    """The flight record of a rank whose names are markup."""
    entry = {
        "time_created_ns": (START_US + 9_000) * 1000,
        "state": "started",
        "profiling_name": f"nccl:{EVIL}",
        "process_group": (EVIL, EVIL),
        "frames": [{"filename": f"{EVIL}.py", "line": 1, "name": EVIL}],
        "input_sizes": [[1 << 20]],
        "input_dtypes": [EVIL],
    }
    return RankFlight(2, made_of(entry))


def main() -> None:
    """Every page."""
    folder = Path(sys.argv[1])
    for path in sorted((DATA / "recordings").glob("*.pickle.xz")):
        write(folder, path.name.split(".")[0], [api.load(path)])
    captured = DATA / "captured"
    write(folder, "lightning", [api.load(captured / "lightning.vram")])
    write(
        folder,
        "ranks",
        [api.load(captured / f"{n}.vram") for n in ("ddp-rank0", "ddp-rank1", "fsdp2-rank0")],
    )
    write(
        folder,
        "what_if",
        [api.load(DATA / "recordings" / "oom_train.pickle.xz")],
        confs=("expandable_segments:True", "max_split_size_mb:32", ""),
    )
    found = DATA / "found"
    pair = [api.load(found / f"{name}.pickle.xz") for name in ("eval_graph", "eval_graph_fixed")]
    write(folder, "pair", pair)
    write(folder, "inference_kv", [api.load(found / "inference_kv.pickle.xz")])
    say = {"headline": words(headline(diff_runs([run_of(pair[0])], [run_of(pair[1])])))}
    (folder / "pair.json").write_text(json.dumps(say), encoding="utf-8")
    leak = DATA / "ranks" / "leak_rank1"
    write(
        folder,
        "job",
        [api.load(leak / f"leak_rank1.rank{rank}.pickle.xz") for rank in (0, 1)],
        ranks=(0, 1),
    )
    jobs = DATA / "ranks" / "ddp"
    flights = [flight_of("ddp", rank) for rank in (0, 1)]
    write(
        folder,
        "collectives",
        [api.load(jobs / f"ddp.rank{rank}.pickle.xz") for rank in (0, 1)],
        flights,
    )
    flights = [flight_of("desync", rank) for rank in (0, 1)]
    runs = [marked(events=198) for _ in range(3)]
    for rank, run in enumerate(runs):
        object.__setattr__(run, "source", f"rank{rank}.vram")
    write(folder, "desync", runs, [*flights, evil_flight()])
    write(
        folder,
        "no_events",
        [read(dump_slowly(snapshot([], [segment(AT, 4 << 20, [block(AT, 4 << 20, 3 << 20)])])))],
    )
    timeless = [event("alloc", AT + n * 4096, 4000, time_us=0, frames=[]) for n in range(9)]
    write(folder, "timeless", [read(dump_slowly(snapshot(timeless, [])))])
    evil = read(dump_slowly(hostile()))
    object.__setattr__(evil, "source", f"{EVIL}.pickle")
    write(folder, "hostile", [evil])


if __name__ == "__main__":
    main()
