"""vramlens.predict beside PyTorch's MemTracker and accelerate's estimate, in one run, without a GPU.

    python beside.py FILE.json [NAME...]

Truth is what an H200 said of the same programs (measured.json). MemTracker runs each program with
fake tensors, as its documentation shows; accelerate's estimate for training with Adam is four
times the weights (accelerate/commands/estimate.py). Each runs in a process of its own, forked
from one that has imported everything.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from forked_answer import answer_of_fork

HERE = Path(__file__).parent
TRUTH = json.loads((HERE / "measured.json").read_text())
MIB = 1 << 20
PATIENCE_S = 60


def vramlens_peak(name: str) -> int:
    """What ``vramlens predict`` says is allocated."""
    import programs

    from vramlens.cards.known_cards import card_named
    from vramlens.prediction.predicted_run import PredictedRun, Question, answer

    run = PredictedRun(card_named("h200"))
    with run.going():
        programs.PROGRAMS[name]()
    question = Question(torch_version="2.11")
    return answer(run.gathered(time.perf_counter()), question).allocated_bytes


def mem_tracker_peak(name: str) -> int:
    """What MemTracker says, all devices together."""
    import programs
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    programs.DEVICE = "cpu"
    torch.Tensor.item = lambda tensor: 1.0
    torch.Tensor.__bool__ = lambda tensor: False
    torch.nn.Module.to = _converted  # everything is on the CPU; it cannot exchange weights
    with FakeTensorMode():
        tracker = MemTracker()
        with tracker:
            programs.PROGRAMS[name]()
        peaks = tracker.get_tracker_snapshot("peak")
    return sum(int(parts["Total"]) for parts in peaks.values())


def _converted(model: Any, *args: Any, **options: Any) -> Any:
    """``Module.to`` without exchanging the weights, which MemTracker has weak references to."""
    import torch

    wanted = [value for value in (*args, *options.values()) if isinstance(value, torch.dtype)]
    for parameter in model.parameters() if wanted else ():
        parameter.data = parameter.data.to(wanted[0])
    return model


class _Built(BaseException):
    """The model that a program would train."""


def accelerate_peak(name: str) -> int:
    """Four times the weights, of the model as the program makes it."""
    import programs
    from accelerate.utils.modeling import calculate_maximum_sizes

    def train(model: Any, *args: Any, **options: Any) -> None:
        raise _Built(model)

    programs.DEVICE, programs.train = "cpu", train
    try:
        programs.PROGRAMS[name]()
    except _Built as built:
        total, _ = calculate_maximum_sizes(built.args[0])
        return int(total) * 4
    raise RuntimeError("no model to estimate")


def _timed(peak_of: Callable[[str], int], name: str) -> dict[str, Any]:
    began = time.perf_counter()
    peak = peak_of(name)
    return {"bytes": peak, "seconds": time.perf_counter() - began}


def main() -> None:
    sys.path.insert(0, str(HERE))
    for module in ("torch", "torch._dynamo", "transformers", "peft", "accelerate", "programs"):
        with contextlib.suppress(ImportError):
            __import__(module)
    names = sys.argv[2:] or sorted(TRUTH)
    answer: dict[str, Any] = {}
    for name in names:
        row: dict[str, Any] = {"measured_bytes": TRUTH[name]["allocated_bytes"]}
        for tool, peak_of in (
            ("vramlens", vramlens_peak),
            ("mem_tracker", mem_tracker_peak),
            ("accelerate", accelerate_peak),
        ):
            row[tool] = answer_of_fork(partial(_timed, peak_of, name), PATIENCE_S)
        answer[name] = row
        shares = {
            tool: f"{row[tool]['bytes'] / row['measured_bytes'] - 1:+.1%}"
            if "bytes" in row[tool]
            else row[tool]["error"][:60]
            for tool in ("vramlens", "mem_tracker", "accelerate")
        }
        print(f"{name:28} {row['measured_bytes'] / MIB:9.1f} MiB", shares, flush=True)
        Path(sys.argv[1]).write_text(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
