"""Each remedy and each strategy on three real programs: what it brings, whether the gradient stays,
what it refuses.

    python benchmarks/guard_matrix.py FOLDER [PROGRAM ...] [--remedies NAME,...] [--strategies
    NAME,...]

    trainer       a Hugging Face Trainer fine-tunes a GPT-2 (random weights); remedies by guard_trainer
    detector      torchvision's RetinaNet with BatchNorm that learns
    accumulation  a GPT, its gradient accumulated over four batches with ragged, ignored labels
    refusals      for each remedy a program that it refuses

Remedies: the program runs undisturbed, then under a limit below its peak with that remedy alone
allowed. Strategies: the program's model, loss and optimizer by ``vramlens.strategies`` (a batch a
step: accumulation is ``split``). On a GPU failures and bytes are real; without one the programs are
    small and run on a simulated device, which caches nothing and
offloads nothing: those rows say so. Every part runs in a process of its own, with a time limit.
guard_matrix.json in FOLDER is whole after each part and keeps the rows of earlier calls: where a
command may take ten minutes, say one program a command; with --remedies or --strategies only these
are run. At the end the whole matrix is printed, and written as guard_matrix.txt.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import guard_gpu as programs
import torch
from guard_gpu import DEVICE, METER, MIB, ON_GPU, cap, furthest, gradients, peak_bytes
from torch import nn
from torch.nn import functional

from vramlens.recovery import guard, strategies
from vramlens.recovery.training.early_optimizer_state import make_state
from vramlens.whole_file import whole_file

REMEDIES = ("free_cached", "split", "checkpoint", "offload")
STRATEGIES = [
    "default", "empty_cache", "expandable", "split", "checkpoint", "checkpoint_half", "bf16", "fp16", "offload",
    "in_backward", "foreach_off", "fused", "eight_bit", "chunked_loss", "channels_last", "bf16+fused",
    "bf16+checkpoint", "bf16+split", "checkpoint+split", "bf16+fused+chunked_loss",
    *(["compile", "bf16+compile"] if ON_GPU else []),
]  # fmt: skip
"""On the CPU torch.compile takes minutes a model, and brings nothing to learn about a GPU."""
PROGRAMS = ("trainer", "detector", "accumulation")
AT_ONCE = 6
"""Strategies that one process compares: what is done stays if the time is up."""
PATIENCE_S = 540 if ON_GPU else 1800
"""For so many: less than the ten minutes that a command may take."""
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Of the undisturbed peak: the limit is the first at which the program really fails."""
DETECTORS = (0.97, *SHARES, 0.37, 0.34, 0.3)
"""Less of a detector's memory lies in blocks that can be recomputed; and cuDNN takes large
workspaces while it can.
"""


# The programs, as strategies() takes them.


def trainer_model() -> nn.Module:
    return programs.fine_tuned().to(DEVICE)


def trainer_batch(size: int) -> dict[str, torch.Tensor]:
    rows = programs.ragged(size, 1)
    return {"input_ids": rows["ids"], "labels": rows["labels"]}


def trainer_loss(model: Any, batch: Any) -> Any:
    return model(**batch).loss


def detector_model() -> nn.Module:
    return programs.detectors()["RetinaNet, BatchNorm"]()


def detector_batch(size: int) -> Any:
    images, targets = programs.pictures()
    return images[:size], targets[:size]


def accumulation_model() -> nn.Module:
    return programs.gpt()


def accumulation_batch(size: int) -> Any:
    return programs.ragged(size, 1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def descent(parameters: Any) -> torch.optim.Optimizer:
    """As torchvision's own programs for detectors."""
    return torch.optim.SGD(parameters, lr=1e-4)


AS_STRATEGIES: dict[str, tuple[Any, Any, Any, int]] = {
    "trainer": (trainer_model, trainer_batch, trainer_loss, programs.TRAINED),
    "detector": (detector_model, detector_batch, programs.detected, 24 if ON_GPU else 12),
    "accumulation": (accumulation_model, accumulation_batch, programs.next_token, programs.BATCH),
}


# Remedies.


def looped(
    build: Callable[[], nn.Module],
    batches: list[Any],
    loss_fn: Any,
    limit: float | None,
    order: tuple[str, ...] | None,
    optimizer_fn: Callable[[Any], torch.optim.Optimizer] = adam,
) -> tuple[Any, dict[str, torch.Tensor], int, str]:
    """One step over some batches, plain (``order`` None) or guarded: guard, gradient, peak, and
    the error's text.
    """
    cap(None)
    model = build()
    optimizer = optimizer_fn(model.parameters())
    make_state(
        optimizer
    )  # so that the peak is that of any later step: the guard makes it beforehand as well
    seen: dict[str, torch.Tensor] = {}
    optimizer.register_step_pre_hook(lambda *_: seen.update(gradients(model)))
    cap(limit)
    torch.manual_seed(1)
    watch = guard(model, optimizer, meter=METER, order=order) if order is not None else None
    text = ""
    try:
        for number, batch in enumerate(batches, 1):
            if watch is not None:
                watch.step(batch, loss_fn, commit=number == len(batches), scale=1 / len(batches))
            else:
                (loss_fn(model, batch) / len(batches)).backward()
        if watch is None:
            optimizer.step()
    except torch.OutOfMemoryError as error:
        text = str(error)
        error.__traceback__ = None
    return watch, seen, peak_bytes(), text


def by_trainer(
    limit: float | None, order: tuple[str, ...] | None
) -> tuple[Any, dict[str, torch.Tensor], int, str]:
    """The same with a Trainer. A Trainer that fails under a limit without a guard is one with no
    remedy allowed.
    """
    try:
        watch, seen, _, peak = programs.with_trainer(
            1, limit, **({} if limit is None else {"order": order or ()})
        )
    except torch.OutOfMemoryError as error:
        text = str(error)
        error.__traceback__ = None
        return None, {}, peak_bytes(), text
    return watch, seen, peak, ""


def program_of(
    name: str,
) -> Callable[[float | None, tuple[str, ...] | None], tuple[Any, Any, int, str]]:
    """A program as a function of its limit and of the remedies that are allowed."""
    if name == "trainer":
        return by_trainer
    build, _, loss_fn, size = AS_STRATEGIES[name]
    batches = (
        [programs.pictures()]
        if name == "detector"
        else [programs.ragged(size, seed) for seed in range(4)]
    )
    optimizer_fn = descent if name == "detector" else adam
    return lambda limit, order: looped(build, batches, loss_fn, limit, order, optimizer_fn)


def remedied(name: str, remedy: str) -> dict[str, Any]:
    """A remedy alone on a program under a limit."""
    run = program_of(name)
    _, _, peak, _ = run(None, None)
    shares = DETECTORS if name == "detector" else SHARES
    share = next((one for one in shares if run(one * peak, None)[3]), None)
    if share is None:
        return {
            "outcome": f"nothing to do: it does not fail at {SHARES[-1]:.0%} of its peak",
            "plain_peak_mib": peak / MIB,
        }
    _, truth, _, _ = run(
        None, None
    )  # now: cuDNN keeps to the algorithms that it chose when room was scarce
    watch, seen, ours, text = run(share * peak, (remedy,))
    cap(None)
    row: dict[str, Any] = {
        "plain_peak_mib": peak / MIB,
        "limit_mib": share * peak / MIB,
        "peak_mib": ours / MIB,
    }
    if text:
        return {**row, "outcome": f"refused: {reason_of(text, remedy)}", "text": text}
    row |= {"gradient_difference": furthest(seen, truth), "failures": watch.report().failures}
    return {**row, "outcome": "survived", "report": str(watch.report())}


def reason_of(text: str, remedy: str) -> str:
    """Why the guard could not go on with this remedy, from its report."""
    told = next(
        (line for line in text.splitlines() if "no remedy left" in line), text.splitlines()[0]
    )
    return told.partition(f"{remedy}: ")[2] or told.strip()


# A refusal for each.


def refusals() -> dict[str, Any]:
    """Each remedy where it must not, or cannot, do anything: an error with the reason, never
    another gradient.
    """
    batch = programs.ragged(programs.BATCH, 1)

    def contrastive(model: Any, batch: Any) -> torch.Tensor:
        vectors = functional.normalize(model(batch["ids"]).mean(1), dim=-1)
        return functional.cross_entropy(
            vectors @ vectors.T / 0.1, torch.arange(len(vectors), device=DEVICE)
        )

    def refused(
        remedy: str,
        build: Callable[[], nn.Module],
        loss_fn: Any,
        shares: tuple[float, ...] = SHARES,
    ) -> dict[str, Any]:
        _, _, peak, _ = looped(build, [batch], loss_fn, None, None)
        text = ""
        for share in shares:
            _, seen, _, text = looped(build, [batch], loss_fn, share * peak, (remedy,))
            if text:
                return {
                    "limit_mib": share * peak / MIB,
                    "refused": reason_of(text, remedy),
                    "stepped": bool(seen),
                }
        return {"refused": "", "stepped": True}

    def compiled() -> nn.Module:
        return torch.compile(programs.gpt(), backend="eager")  # type: ignore[return-value]

    return {
        "free_cached, too little is cached": refused(
            "free_cached", programs.gpt, programs.next_token
        ),
        "split, a contrastive loss": refused("split", programs.gpt, contrastive),
        "checkpoint, a compiled model": refused("checkpoint", compiled, programs.next_token),
        "offload, no room even so": refused(
            "offload", programs.gpt, programs.next_token, (0.2, 0.1)
        ),
    }


# The matrix.


def compared(name: str, wanted: list[str]) -> dict[str, Any]:
    """The strategies on a program, a row each."""
    build, make_batch, loss_fn, size = AS_STRATEGIES[name]
    build()  # a package that is missing is told before anything else
    table = strategies(
        build,
        make_batch,
        loss_fn,
        adam,
        batch=size,
        names=wanted,
        repeats=1,
        steps=3,
        device=DEVICE,
    )
    return {"rows": [asdict(row) for row in table.rows]}


def part(words: list[str]) -> dict[str, Any]:
    """One part, in a process of its own."""
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if words[0] == "strategies":
        return compared(words[1], words[2].split(","))
    with METER or contextlib.nullcontext():
        return refusals() if words[0] == "refusals" else remedied(words[1], words[0])


def mib(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def drift(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def lines_of(results: dict[str, Any]) -> list[str]:
    """The matrix as text."""
    lines = [f"{results['device']}, torch {results['torch']}"]
    for name in PROGRAMS:
        if name not in results:
            continue
        lines += [
            "",
            f"{name}: remedies",
            f"  {'':12} {'plain MiB':>10} {'limit':>10} {'peak':>10} {'gradient':>9}",
        ]
        for remedy, row in results[name].get("remedies", {}).items():
            lines.append(
                f"  {remedy:12} {mib(row.get('plain_peak_mib')):>10} {mib(row.get('limit_mib')):>10}"
                f" {mib(row.get('peak_mib')):>10} {drift(row.get('gradient_difference')):>9}  {outcome(row)}"
            )
        told = results[name].get("strategies")
        if told is None:
            continue
        lines += ["", f"{name}: strategies"]
        if outcome(told):
            lines.append(f"  {outcome(told)}")
        if "rows" not in told:
            continue
        lines.append(
            f"  {'':24} {'peak MiB':>10} {'reserved':>10} {'a step':>10} {'loss':>9} {'gradient':>9}"
        )
        for row in told["rows"]:
            if row["outcome"] != "done":
                lines.append(f"  {row['name']:24} {row['outcome']}: {row['why'][:150]}")
                continue
            lines.append(
                f"  {row['name']:24} {mib(row['peak_allocated_bytes'] / MIB):>10}"
                f" {mib(row['peak_reserved_bytes'] / MIB):>10} {row['step_ms']:7.1f} ms {drift(row['loss_drift']):>9}"
                f" {drift(row['gradient_drift']):>9}"
            )
    if "refusals" in results:
        lines += ["", "refusals"]
        for name, row in results["refusals"].items():
            if isinstance(row, dict):
                stepped = ", AND IT STEPPED" if row["stepped"] else ""
                lines.append(f"  {name}: {row['refused'] or 'NOT REFUSED'}{stepped}")
            else:
                lines.append(f"  {name}: {str(row).splitlines()[-1]}")
    return lines


def outcome(row: dict[str, Any]) -> str:
    """How a part ended, in one line."""
    for key in ("outcome", "missing", "failed"):
        if key in row:
            return f"{'' if key == 'outcome' else key + ': '}{str(row[key]).splitlines()[-1][:200]}"
    return ""


def beside(found: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """New rows with those of other names that were there; without new ones, those."""
    rows = before.get("rows", [])
    if "rows" not in found:
        return {**found, "rows": rows} if rows else found
    done = {row["name"] for row in found["rows"]}
    rows = [row for row in rows if row["name"] not in done] + found["rows"]
    order = {name: place for place, name in enumerate(STRATEGIES)}
    return {**found, "rows": sorted(rows, key=lambda row: order.get(row["name"], len(order)))}


def main() -> None:
    words = sys.argv[1:]
    if not words:
        sys.exit(__doc__)
    if words[0] == "--one":
        print(json.dumps(programs.or_missing(lambda: part(words[1:]))))
        return
    chosen = {}
    for option in ("--remedies", "--strategies"):
        if option in words:
            index = words.index(option)
            chosen[option] = words[index + 1].split(",")
            del words[index : index + 2]
    chosen = chosen or {"--remedies": list(REMEDIES), "--strategies": STRATEGIES}
    folder, names = words[0], words[1:] or [*PROGRAMS, "refusals"]
    unknown = [name for name in names if name not in (*PROGRAMS, "refusals")]
    if unknown:
        sys.exit(
            f"guard_matrix: {unknown[0]!r} is no program: say {', '.join(PROGRAMS)} or refusals"
        )
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "guard_matrix.json")
    device = torch.cuda.get_device_name() if ON_GPU else "a simulated device on the CPU"
    results: dict[str, Any] = {"device": device, "torch": torch.__version__}
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        before = json.load(file)
        if (before.get("device"), before.get("torch")) == (device, torch.__version__):
            results = before

    def run(*words: str) -> dict[str, Any]:
        began = time.monotonic()
        patience_s = PATIENCE_S if words[0] == "strategies" else programs.PATIENCE_S
        found = programs.in_a_process(__file__, *words, patience_s=patience_s)
        told = outcome(found) or "done"
        print(
            f"{' '.join(words[:2])}: {told} ({time.monotonic() - began:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        return found

    for name in names:
        if name == "refusals":
            results[name] = run("refusals")
        else:
            kept = results.setdefault(name, {"remedies": {}})
            for remedy in chosen.get("--remedies", ()):
                kept["remedies"][remedy] = run(remedy, name)
                programs.written(path, results)
            wanted = chosen.get("--strategies", ())
            for start in range(0, len(wanted), AT_ONCE):
                kept["strategies"] = beside(
                    run("strategies", name, ",".join(wanted[start : start + AT_ONCE])),
                    kept.get("strategies", {}),
                )
                programs.written(path, results)
        programs.written(path, results)
    page = "\n".join(lines_of(results)) + "\n"
    with whole_file(os.path.join(folder, "guard_matrix.txt")) as text:
        text.write(page.encode())
    print(page)


if __name__ == "__main__":
    main()
