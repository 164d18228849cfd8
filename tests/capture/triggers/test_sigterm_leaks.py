"""SIGTERM under ``vramlens run --leaks``: the report, and the death that it would have been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from vramlens.capture.recording.session import RecordingPlan, Session

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the native core handles it on Linux"
)

PROGRAM = """
import signal, sys, time, torch
{handler}
layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(layer.parameters())
kept = []
for step in range(10_000):
    out = layer(torch.randn(1000, 64))
    kept.append(out.detach())
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 30:
        print("ready", flush=True)
    time.sleep(0.01 if step < 30 else {pause})
"""
OWN_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"


@pytest.mark.parametrize("pause", [0.01, 60], ids=["between steps", "in a long step"])
@pytest.mark.parametrize(("handler", "code"), [("", -signal.SIGTERM), (OWN_HANDLER, 7)])
def test_it_leaves_the_report_and_ends_as_it_would_have(
    tmp_path: Path, handler: str, code: int, pause: float
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(handler=handler, pause=pause))
    process = subprocess.Popen(
        [sys.executable, "-m", "vramlens", "run", "--leaks", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.count("LEAK proven: 250.00 KiB per step") == 1
    assert "kept, a list" in errors


class Findings:
    """What was found so far, and how often it was told."""

    def __init__(self) -> None:
        self.told = 0

    def tell(self) -> None:
        self.told += 1

    tell_after_step = tell

    def owners(self, kind: str) -> None:
        """Of no storage: there is no GPU."""


@pytest.mark.parametrize("is_signal_first", [True, False])
def test_a_signal_and_the_exit_that_meet_tell_it_once(*, is_signal_first: bool) -> None:
    """A program may come to its end while the recording of a signal is being written."""
    leaks = Findings()
    plan = RecordingPlan(at_exit=True, leaks=True)
    session = Session(plan, verdict=None, command=None, leaks=leaks)  # type: ignore[arg-type]
    if is_signal_first:
        session._terminated("SIGTERM", None)
        session._at_exit()
    else:
        session._at_exit()
        session._terminated("SIGTERM", None)
    session._end_at_signal()
    assert leaks.told == 1


class _Unreadable(Findings):
    """Findings that cannot be told."""

    def tell(self) -> None:
        raise SystemExit(3)


def test_an_end_that_fails_gives_the_signals_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else SIGTERM would go on to a handler of a session that is over."""
    plan = RecordingPlan(at_exit=True, leaks=True)
    session = Session(plan, verdict=None, command=None, leaks=_Unreadable())  # type: ignore[arg-type]
    stops: list[bool] = []
    monkeypatch.setattr(session._termination, "stop", lambda: stops.append(True))
    with pytest.raises(SystemExit):
        session._at_exit()
    assert stops == [True]
    assert session._end.is_over.is_set()
