"""vramlens, PyTorch's MemTracker and accelerate's estimate on the same run of a script, without a GPU.

    python beside_scripts.py FILE.json [NAME...]

Each script of held_out runs once, on the device that a prediction stands in for: MemTracker sees
the same tensors in the same run. accelerate's estimate for training with Adam is four times the
weights (accelerate/commands/estimate.py); the weights are those alive at the first step. Truth is
what an H200 said (held_out_measured.json). Each script runs in a process of its own, forked from one
that has imported everything.
"""

from __future__ import annotations

import contextlib
import gc
import json
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

from forked_answer import answer_of_fork

HERE = Path(__file__).parent
TRUTH = json.loads((HERE / "held_out_measured.json").read_text())
PATIENCE_S = 240


def peaks(path: Path) -> dict[str, Any]:
    """Peak bytes allocated, by tool."""
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from vramlens.cards.known_cards import card_named
    from vramlens.prediction.predicted_run import PredictedRun

    answer: dict[str, Any] = {}

    def note_weights(*args: Any) -> None:
        if "accelerate" not in answer:
            parameters = [
                thing for thing in gc.get_objects() if isinstance(thing, torch.nn.Parameter)
            ]
            on_device = [weight for weight in parameters if weight.device.type == "cuda"]
            storages = {
                weight.untyped_storage()._cdata: weight.untyped_storage().nbytes()
                for weight in on_device
            }
            answer["accelerate"] = 4 * sum(storages.values())

    run = PredictedRun(card_named("h200"))
    register_optimizer_step_pre_hook(note_weights)
    tracker = MemTracker()
    _reset_before_each_model(tracker)
    with run.going():
        try:
            with tracker:
                runpy.run_path(str(path), run_name="__main__")
        except Exception as error:
            first_line = str(error).partition("\n")[0][:100]
            answer["mem_tracker_error"] = f"{type(error).__name__}: {first_line}"
    answer["vramlens"] = run.log.peak_bytes
    snapshot = tracker.get_tracker_snapshot("peak")
    answer["mem_tracker"] = sum(
        int(parts["Total"]) for device, parts in snapshot.items() if device.type == "cuda"
    )
    return answer


def _reset_before_each_model(tracker: Any) -> None:
    """MemTracker refuses a module's second forward unless its statistics of modules are reset."""
    from torch.nn.modules import module

    depth = 0

    def begin(*args: Any) -> None:
        nonlocal depth
        if depth == 0:
            tracker.reset_mod_stats()
        depth += 1

    def end(*args: Any) -> None:
        nonlocal depth
        depth -= 1

    module.register_module_forward_pre_hook(begin)
    module.register_module_forward_hook(end)


def main() -> None:
    for module in ("torch", "torch._dynamo", "transformers", "peft", "accelerate"):
        with contextlib.suppress(ImportError):
            __import__(module)
    path = Path(sys.argv[1])
    answer: dict[str, Any] = {}
    for name in sys.argv[2:] or sorted(TRUTH):
        row = answer_of_fork(partial(peaks, HERE / "held_out" / f"{name}.py"), PATIENCE_S)
        measured = TRUTH[name]["allocated_bytes"]
        answer[name] = {"measured_bytes": measured, **row}
        shares = {
            tool: f"{row[tool] / measured - 1:+.1%}" if tool in row else "-"
            for tool in ("vramlens", "mem_tracker", "accelerate")
        }
        print(f"{name:22}", shares, row.get("error") or row.get("mem_tracker_error"), flush=True)
        path.write_text(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
