"""One leak: what a program's own report says of it, `vramlens leaks` of its recording, `explain`
and the page say in the same words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402
from support.documents import markdown  # noqa: E402
from support.recordings import event, snapshot  # noqa: E402
from support.vram_files import vram  # noqa: E402
from vramlens.analyses.attribution.attribution import attribute  # noqa: E402
from vramlens.analyses.leaks.recorded_leak import RecordedLeak  # noqa: E402
from vramlens.leak.leak import Leak  # noqa: E402
from vramlens.live.follow import owners_of  # noqa: E402
from vramlens.live.leaks.leak_report import LeakReport  # noqa: E402
from vramlens.report.wording import sentence  # noqa: E402
from vramlens.view.columns import Columns  # noqa: E402
from vramlens.view.page_verdict import verdict_of  # noqa: E402

STEPS = 12
SIZE = 1 << 20


class Program:
    """A program whose tensors are storages in the process and blocks in a snapshot."""

    def __init__(self) -> None:
        self.history: list[Any] = []
        self.weight = torch.zeros(1000, requires_grad=True)
        self.events: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []

    def record(self, action: str, address: int, function: str, line: int) -> None:
        frames = [{"filename": __file__, "name": function, "line": line}]
        when_us = 10 * len(self.events) + 10
        self.events.append(event(action, address, SIZE, frames=frames, time_us=when_us))

    def step(self) -> None:
        batch = torch.zeros(SIZE // 4)
        self.history.append(batch)
        self.record("alloc", batch.data_ptr(), "step", batch_line())
        self.mark()

    def mark(self) -> None:
        end = {"stage": "END", "name": "vramlens.step", "device": 0}
        self.marks.append(end | {"time_us": 10 * len(self.events) + 5})


def batch_line() -> int:
    lines = Path(__file__).read_text().splitlines()
    return lines.index("        batch = torch.zeros(SIZE // 4)") + 1


@pytest.fixture(scope="module")
def watched_and_recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[LeakReport, Path]:
    program = Program()
    watch = vramlens.LeakWatch()
    for _ in range(STEPS):
        program.step()
        watch.step()
    owned = watch.owned()
    assert owned is not None
    for number in (1, 2):  # judging ends before the last step
        program.record("alloc", number << 45, "after", number)
        program.mark()
    taken = snapshot(program.events, []) | {"external_annotations": program.marks}
    path = tmp_path_factory.mktemp("leak") / "run.vram"
    vram(path, taken, {"total_bytes": {}}, owners=owners_of(*owned, 10_000, "cpu"))
    return owned[0], path


def one_line(text: str) -> str:
    return " ".join(text.replace("`", "").replace("\\", "").split())


def test_it_is_one_type_with_the_same_words(
    watched_and_recorded: tuple[LeakReport, Path],
) -> None:
    report, path = watched_and_recorded
    recording = vramlens.load(path)
    recorded_report, explanation = recording.leaks(), recording.explain()
    (live,) = report.found
    (recorded,) = recorded_report.sure
    assert isinstance(live, Leak)
    assert isinstance(recorded, RecordedLeak)
    assert live.to_dict().keys() == recorded.to_dict().keys()
    shared = ("class", "line", "bytes_per_step", "bytes", "steps", "storages", "owner", "fix")
    live_data, recorded_data = live.to_dict(), recorded.to_dict()
    assert [live_data[key] for key in shared] == [recorded_data[key] for key in shared]

    (finding,) = (claim for claim in explanation.findings if claim.id == "leak")
    page = verdict_of(attribute(recording, recording.devices[0]), explanation, Columns())
    (shown,) = (claim for claim in page["findings"] if claim["id"] == "leak")
    texts = [
        str(report),
        markdown(recorded_report),
        " ".join((finding.title, *finding.evidence, f"Fix: {finding.fix}")),
    ]
    growth = "1.00 MiB per step, 12.00 MiB so far in 12 steps"
    keeper = "keeps 1 tensor of every step"
    fix = "Fix: limit Program.history (a deque(maxlen=...))"
    for text in map(one_line, texts):
        assert growth in text
        assert "Program.history, a list (" in text
        assert "self.history.append(batch))" in text
        assert keeper in text
        assert fix in text
        assert "(saves 1.00 MiB per step)" in text
    assert shown["title"] == finding.title
    assert shown["evidence"] == [sentence(text) for text in finding.evidence]
    assert shown["fix"] == sentence(finding.fix or "")
    assert live.owner is not None
    chain = " > ".join(live.owner.chain)
    for text in map(one_line, texts[:2]):
        assert f"eld by {one_line(chain)}" in text
        assert f"test_one_leak.py:{batch_line()} in step" in text
