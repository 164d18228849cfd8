"""On a GPU, by hand: what recovery promises, on real programs that really run out of memory.

    PYTHONPATH=src python tests/recovery/gpu_check.py OUT [CASE ...]

Each case runs in a process of its own, 120 seconds at most, and prints "right" or "WRONG" with what
was measured; all of it is written to OUT/guard_check.json. The exit code is 0 where all are right,
1 where one is wrong, 2 without a GPU.

    plan           a plan for 60% of a GPT's peak keeps its word in a fresh model; 10% is refused in words
    place          weights that fit neither GPU alone run over two, each below its limit (two GPUs)
    place_tied     the same with a GPT-2 of transformers as it is loaded, whose head is its embedding (two GPUs)
    retry          inference in the chunks that fit; a pool makes no new device allocation, and survives in chunks, too
    offload        activations in host memory: the same gradient at 60% of the peak
    step_backup    a half-made optimizer step is undone bit by bit; without the backup the error says what was lost
    thousand       1,000 steps, 1,000 injected failures: the loss curve, the bytes and the tensors of an undisturbed run
    real_failures  200 steps of ragged batches, the long ones of which do not fit: all survive, no byte is left
    caching        the step of a GPT with and without the caching allocator: two figures, never wrong
    restart        vramlens run --restart-on-oom: a program that dies survives its second run with what it learned

With --simulated among the words and no GPU, small versions run on benchmarks/guard_gpu.py's
simulated device; those that need more than its counter are left out. Injected failures
(step_backup, thousand) are said to be so; all others are real.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vramlens
from vramlens.recovery.training.rollback import host_copy

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from gpt import GPT  # noqa: E402
from guard_gpu import (  # noqa: E402
    DEVICE,
    METER,
    MIB,
    ON_GPU,
    cap,
    furthest,
    gpt,
    gradients,
    in_a_process,
    next_token,
    peak_bytes,
    ragged,
    written,
)

PATIENCE_S = 120
GIB = 1 << 30
Found = dict[str, Any]
# Layers, width, vocabulary, length and batch of the GPT that has to be made smaller.
LAYERS, WIDTH, VOCABULARY, LENGTH, BATCH = (
    (8, 768, 8192, 512, 16) if ON_GPU else (4, 64, 512, 64, 8)
)
# Of the GPT that fails a thousand times.
SMALL = (2, 128, 256, 32, 8) if ON_GPU else (1, 64, 64, 12, 6)
# Rows, their width, and the hidden width of the inference; rows of the largest of many requests.
ROWS, NARROW, WIDE, REQUEST = (65536, 1024, 16384, 8192) if ON_GPU else (512, 32, 512, 64)


def judged(checks: dict[str, bool], **figures: Any) -> Found:
    return {
        "right": all(checks.values()),
        "wrong": [name for name, holds in checks.items() if not holds],
        **figures,
    }


def left_out(why: str) -> Found:
    return {"left_out": why}


def allocated() -> int:
    if METER is not None:
        return METER.allocated_bytes()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def device_allocations() -> int:
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0)) if ON_GPU else 0


def live_tensors() -> int:
    """Tensors that Python can see; classes are compared, since some objects only pretend to have
    one.
    """
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def batch_of(size: int, seed: int = 0) -> dict[str, torch.Tensor]:
    return ragged(size, seed, VOCABULARY, LENGTH)


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = gpt(LAYERS, WIDTH, VOCABULARY)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def peak_of_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> int:
    """The peak of a step that has its optimizer's state already."""
    for _ in range(2):
        cap(None)
        next_token(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return peak_bytes()


def plain_peak() -> int:
    return peak_of_step(*fresh(), batch_of(BATCH))


def gradient_of(change: Callable[[nn.Module], Any] | None = None) -> dict[str, torch.Tensor]:
    """The first gradient of a fresh model, changed or not."""
    model = fresh()[0]
    if change is not None:
        change(model)
    next_token(model, batch_of(BATCH)).backward()
    return gradients(model)


def plan() -> Found:
    peak = plain_peak()
    cap(None)

    def planned(share: float) -> Any:
        model, optimizer = fresh()
        return vramlens.plan(
            model,
            batch_of,
            next_token,
            optimizer,
            budget=int(share * peak),
            batch=BATCH,
            meter=METER,
        )

    found, impossible = planned(0.6), planned(0.1)
    cap(None)
    model, optimizer = fresh()
    measured = peak_of_step(found.apply(model), optimizer, batch_of(BATCH))
    del model, optimizer
    difference = furthest(gradient_of(found.apply), gradient_of())
    chosen = sum(choice.chosen for choice in found.choices)
    return judged(
        {
            "it fits": found.fits and not found.offload,
            "some blocks are recomputed": 0 < chosen <= LAYERS,
            "within the budget": measured <= 0.6 * peak,
            "as measured by the plan": abs(measured / found.after_bytes - 1) <= 0.03,
            "before, as measured here": abs((found.before_bytes or 0) / peak - 1) <= 0.03,
            "the same gradient": difference <= 1e-5,
            "10% is refused": not impossible.fits,
            "in words": str(impossible).startswith("Nothing that was tried stays within"),
        },
        plain_mib=peak / MIB, budget_mib=0.6 * peak / MIB, planned_mib=found.after_bytes / MIB,
        measured_mib=measured / MIB, recomputed=chosen, blocks=len(found.choices), gradient_difference=difference,
        before_ms=found.before_ms, after_ms=found.after_ms, plan=str(found), refused=str(impossible).splitlines()[0],
    )  # fmt: skip


def limit_gpus(size_bytes: float | None) -> None:
    """What this process may have of each of the first two GPUs; None: all."""
    gc.collect()
    torch.cuda.empty_cache()
    for index in range(2):
        total = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(
            1.0 if size_bytes is None else size_bytes / total, index
        )
        torch.cuda.reset_peak_memory_stats(index)


def fits_one_gpu(model: nn.Module) -> bool:
    try:
        model.to("cuda:0")
    except torch.OutOfMemoryError:
        return False
    finally:
        model.to("cpu")
    return True


def on_first(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cuda:0") for name, tensor in batch.items()}


def placed(
    model: nn.Module, batch: dict[str, torch.Tensor], limit: int, logits: Callable[[Any], Any]
) -> Found:
    """A model over two GPUs, each with a limit, beside the same model on one GPU without."""
    model.eval()
    with torch.no_grad():
        truth = logits(model.to("cuda:0")(**on_first(batch))).cpu()
    model.to("cpu")
    limit_gpus(limit)
    fits = fits_one_gpu(model)
    limit_gpus(limit)
    placement = vramlens.place(
        model, batch, memory={0: f"{limit // MIB}MiB", 1: f"{limit // MIB}MiB"}
    )
    for index in range(2):
        torch.cuda.reset_peak_memory_stats(index)
    weights = [torch.cuda.memory_allocated(index) for index in range(2)]
    figures: dict[str, Any] = {
        "limit_mib": limit / MIB, "weights_mib": [size / MIB for size in weights], "placement": str(placement),
        "said_mib": [placement.used_bytes[index] / MIB for index in range(2)],
    }  # fmt: skip
    try:
        with torch.no_grad():
            output = logits(placement.model(**on_first(batch))).cpu()
    except Exception as error:  # what is told is the point of this case
        return judged({"it runs": False}, **figures, error=f"{type(error).__name__}: {error}"[:600])
    peaks = [torch.cuda.max_memory_allocated(index) for index in range(2)]
    ratios = [peak / placement.used_bytes[index] for index, peak in enumerate(peaks)]
    difference = float((output - truth).norm() / truth.norm())
    return judged(
        {
            "one GPU is too small": not fits,
            "both are used": min(weights) > 0,
            "the same output": difference <= 1e-5,
            "below the limits": max(peaks) <= limit,
            "as much as it said": all(abs(ratio - 1) <= 0.1 for ratio in ratios),
        },
        **figures, measured_mib=[peak / MIB for peak in peaks], measured_over_said=ratios, output_difference=difference,
    )  # fmt: skip


def place() -> Found:
    if torch.cuda.device_count() < 2:
        return left_out("one GPU" if ON_GPU else "no GPU")

    torch.manual_seed(0)
    return placed(
        GPT(4096, 2048, 15),
        {"ids": torch.randint(0, 4096, (32, 64))},
        2 * GIB,
        lambda output: output,
    )


def place_tied() -> Found:
    if torch.cuda.device_count() < 2:
        return left_out("one GPU" if ON_GPU else "no GPU")
    if find_spec("transformers") is None:
        return left_out("transformers is not installed")
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=24, n_embd=1024, n_head=16, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 50257, (4, 128))
    return placed(model, {"input_ids": ids}, GIB, lambda output: output.logits)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(NARROW, WIDE), nn.GELU(), nn.Linear(WIDE, NARROW)).to(DEVICE)


def chunked(
    model: nn.Module, x: torch.Tensor, limit: float, pool: bool
) -> tuple[dict[str, bool], Found]:
    """Inference that does not fit whole: beside the same chunks made by hand, and once more with
    what was kept.
    """
    calls: list[int] = []

    @vramlens.retry(pool=pool)
    def infer(rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        with torch.no_grad():
            return model(rows)

    cap(limit)
    ours = host_copy(infer(x))
    first, chunk = list(calls), infer.chunk  # type: ignore[attr-defined]
    calls.clear()
    infer(x)
    cap(None)
    with torch.no_grad():
        by_hand = torch.cat([host_copy(model(part)) for part in x.split(chunk or len(x))])
    checks = {
        "it failed whole": first[0] == len(x) and len(first) > 1,
        "as chunks by hand": torch.equal(ours, by_hand),
        "the chunk is kept": calls == [chunk] * (len(x) // (chunk or len(x))),
    }
    return checks, {
        "calls": first,
        "kept_calls": calls,
        "difference": float((ours - by_hand).abs().max()),
    }


def requests(
    model: nn.Module, x: torch.Tensor, truth: list[torch.Tensor], pool: bool | None
) -> Found:
    """Requests of many sizes while other tensors, of other sizes, come and go; pool None: the
    truth is noted.
    """
    chance, sizes = random.Random(0), random.Random(1)
    others: list[torch.Tensor] = []

    def plain(rows: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(rows)

    infer = plain if pool is None else vramlens.retry(pool=pool)(plain)
    cap(None)
    start = device_allocations()
    early = late = 0
    equal = True
    for number in range(50):
        size = sizes.randint(REQUEST // 8, REQUEST) if number else REQUEST
        before = device_allocations()
        output = infer(x[:size])
        made = device_allocations() - before
        early, late = (early, late + made) if number >= 10 else (early + made, late)
        seen = output[:, ::16].cpu()
        del output
        if pool is None:
            truth.append(seen)
        else:
            equal = equal and torch.equal(seen, truth[number])
        unit = MIB if ON_GPU else 64
        others += [
            torch.zeros(chance.randint(1, 64) * unit, dtype=torch.uint8, device=DEVICE)
            for _ in range(3)
        ]
        while len(others) > 20:
            others.pop(chance.randrange(len(others)))
    return {
        "equal": equal,
        "first_10_requests_made": early,
        "later_requests_made": late,
        "device_allocations": device_allocations() - start,
        "allocated_mib": allocated() / MIB,
        "reserved_mib": torch.cuda.memory_reserved() / MIB if ON_GPU else None,
    }


def retry() -> Found:
    model, x = perceptron(), torch.randn(ROWS, NARROW).to(DEVICE)
    cap(None)
    with torch.no_grad():
        model(x)
    peak = peak_bytes()
    plain, plain_figures = chunked(model, x, 0.65 * peak, False)
    pooled, pooled_figures = chunked(model, x, 0.65 * peak, True)
    truth: list[torch.Tensor] = []
    requests(model, x, truth, None)
    without, with_pool = requests(model, x, truth, False), requests(model, x, truth, True)
    return judged(
        {
            **plain,
            **{f"{name}, in a pool": holds for name, holds in pooled.items()},
            "requests are answered alike": without["equal"] and with_pool["equal"],
            "no later allocation in the pool": with_pool["later_requests_made"] == 0,
            "the first ones made some": with_pool["first_10_requests_made"] > 0 or not ON_GPU,
        },
        peak_mib=peak / MIB, limit_mib=0.65 * peak / MIB, chunks=plain_figures, chunks_in_a_pool=pooled_figures,
        requests=without, requests_in_a_pool=with_pool,
    )  # fmt: skip


def offload() -> Found:
    if not ON_GPU:
        return left_out("no GPU to offload from")
    peak = plain_peak()
    truth, again = gradient_of(), gradient_of()
    cap(None)
    model, optimizer = fresh()
    seen: dict[str, torch.Tensor] = {}
    optimizer.register_step_pre_hook(lambda *_: seen.update(gradients(model)))
    cap(0.6 * peak)
    watch = vramlens.guard(model, optimizer, order=("offload",))
    watch.step(batch_of(BATCH), next_token)
    capped = peak_bytes()
    cap(None)
    report = watch.report()
    difference = furthest(seen, truth)
    return judged(
        {
            "it ran out of memory": report.failures > 0,
            "by offload alone": report.micro_batch is None and any(e.kind == "offload" for e in report.events),
            "the same gradient": difference <= 1e-6,
            "below the limit": capped <= 0.6 * peak,
        },
        peak_mib=peak / MIB, limit_mib=0.6 * peak / MIB, offloaded_mib=capped / MIB, gradient_difference=difference,
        difference_of_two_undisturbed=furthest(again, truth), failures=report.failures, report=str(report),
    )  # fmt: skip


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before the first product of this process
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def four_steps(
    foreach: bool | None, fails: bool, **options: Any
) -> tuple[dict[str, torch.Tensor], Any, str]:
    """Parameters after four guarded steps, the guard, and the error that ended them."""
    layers, width, vocabulary, length, size = SMALL
    model = gpt(layers, width, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach)
    watch = vramlens.guard(model, optimizer, meter=METER, **options)
    drill = vramlens.inject_oom("step", at=2) if fails else contextlib.nullcontext()
    text = ""
    try:
        with drill:
            for seed in range(4):
                watch.step(ragged(size, seed, vocabulary, length), next_token)
    except torch.OutOfMemoryError as error:
        text = str(error)
    return {name: host_copy(p, torch.float64) for name, p in model.named_parameters()}, watch, text


def step_backup() -> Found:
    def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(ours[name], value) for name, value in theirs.items())

    with deterministic():
        truth, _, _ = four_steps(False, False)
        again, _, _ = four_steps(False, False)
        ours, watch, failed = four_steps(False, True, step_backup=True)
        # By default parameters are stepped together; after a failure one by one, which may round
        # otherwise.
        together, _, _ = four_steps(None, False)
        default, other, failed_too = four_steps(None, True, step_backup=True)
        _, stopped, text = four_steps(False, True)
    after = ""
    try:
        stopped.step(ragged(4, 0, SMALL[2], SMALL[3]), next_token)
    except vramlens.UsageError as error:
        after = str(error)
    difference, of_kernels = furthest(default, together), furthest(truth, together)
    return judged(
        {
            "two undisturbed runs are equal": same(again, truth),
            "all four steps are made": not failed and not failed_too and watch.report().steps == 4,
            "the failure is told": any("restored from the copy on the host" in e.text for e in watch.report().events),
            "equal bit by bit": same(ours, truth),
            "equal but for how two of PyTorch's kernels round": difference <= max(1e-6, 2 * of_kernels),
            "without: the error says so": "only partly updated" in text and "checkpoint" in text,
            "without: the report says so": "partly updated" in str(stopped.report()) and stopped.report().stopped,
            "without: no further step": "partly updated" in after,
        },
        default_equal_bit_by_bit=same(default, together), default_difference=difference,
        difference_of_kernels=of_kernels, error=text,
        report=str(watch.report()), default_report=str(other.report()), stopped=str(stopped.report()),
    )  # fmt: skip


def noisy(size: int, seed: int, vocabulary: int, length: int) -> dict[str, torch.Tensor]:
    """Half of the labels can be learned, the other half cannot: the loss falls, but never to
    where rounding counts.
    """
    generator = torch.Generator().manual_seed(seed)
    ids, other = (
        torch.randint(0, vocabulary, (size, length), generator=generator) for _ in range(2)
    )
    labels = torch.where(torch.rand(size, length, generator=generator) < 0.5, ids, other)
    for index in range(size):
        labels[index, : (index * 3 + seed) % (length - 1)] = -100
    return {"ids": ids.to(DEVICE), "labels": labels.to(DEVICE)}


def thousand() -> Found:
    steps = 1000
    layers, width, vocabulary, length, size = SMALL

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = gpt(layers, width, vocabulary)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def undisturbed() -> list[float]:
        model, optimizer = made()
        losses = []
        for number in range(steps):
            loss = next_token(model, noisy(size, number, vocabulary, length))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses

    truth = undisturbed()
    cap(None)
    model, optimizer = made()
    watch = vramlens.guard(model, optimizer, order=("split",), step_backup=True, meter=METER)
    watch.verify(
        noisy(size, 0, vocabulary, length), next_token
    )  # its own calls are none to be failed
    phases = ("forward", "backward", "step")
    raised, ours, marks = dict.fromkeys(phases, 0), [], []
    began = time.monotonic()
    for number in range(steps):
        watch.load_state_dict({})  # as if memory was there again
        phase = phases[number % 3]
        with vramlens.inject_oom(phase) as drill:
            ours.append(float(watch.step(noisy(size, number, vocabulary, length), next_token)))
        raised[phase] += drill.raised
        if number in (4, steps - 1):
            marks.append((live_tensors(), allocated()))
    seconds = time.monotonic() - began
    report = watch.report()
    furthest_loss = max(abs(a - b) / abs(b) for a, b in zip(ours, truth, strict=True))
    return judged(
        {
            "a thousand failures": sum(raised.values()) == steps,
            "a thousand steps": report.steps == steps and not report.stopped,
            "the same losses": furthest_loss <= 1e-4,
            "the loss falls": truth[-1] < 0.95 * truth[0],
            "no byte is left": marks[0][1] == marks[1][1],
            "no tensor is left": marks[0][0] == marks[1][0],
        },
        raised=raised, recovered=report.recovered, furthest_loss=furthest_loss, losses=[truth[0], truth[-1]],
        tensors=[mark[0] for mark in marks], allocated_bytes=[mark[1] for mark in marks], seconds=seconds,
    )  # fmt: skip


def real_failures() -> Found:
    steps, size, longest = (200, 48, 256) if ON_GPU else (30, 12, 64)
    chance = random.Random(0)
    # The longest first: a failure leaves the peak counter high, so the guard cannot foresee those
    #     that follow.
    lengths = [
        longest,
        *(chance.randrange(longest // 4, longest + 1, longest // 32) for _ in range(steps - 1)),
    ]

    def batch(number: int, length: int) -> dict[str, torch.Tensor]:
        return ragged(size, number, length=length)

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    model = gpt()
    peak = peak_of_step(model, optimizer_of(model), batch(0, longest))
    del model
    cap(None)
    model = gpt()
    optimizer = optimizer_of(model)
    taken: list[Any] = []

    def take(*_: Any) -> None:
        if not taken and watch.report().recovered:
            parameters = {name: host_copy(p) for name, p in model.named_parameters()}
            taken.extend((len(losses), parameters, gradients(model)))

    def mark() -> tuple[int, int]:
        return live_tensors() - (len(taken[1]) + len(taken[2]) if taken else 0), allocated()

    optimizer.register_step_pre_hook(take)
    cap(0.65 * peak)
    watch = vramlens.guard(model, optimizer, threshold=1.0, grow_after=5, meter=METER)
    losses: list[float] = []
    start = (0, 0)
    for number, length in enumerate(lengths):
        if number % (steps // 10) == 0:
            watch.load_state_dict({})  # whole batches again: those that do not fit fail once more
        losses.append(float(watch.step(batch(number, length), next_token)))
        if number == 0:
            start = mark()
    end = mark()
    capped = peak_bytes()
    cap(None)
    report = watch.report()
    difference = None
    if taken:
        where, parameters, seen = taken
        plain = gpt()
        plain.load_state_dict(parameters)
        next_token(plain, batch(where, lengths[where])).backward()
        difference = furthest(seen, gradients(plain))
    kinds = [event.kind for event in report.events]
    return judged(
        {
            "some did not fit": report.failures >= 3,
            "all survived": report.steps == steps and not report.stopped,
            "below the limit": capped <= 0.65 * peak,
            "the first recovered gradient": difference is not None and difference <= 1e-5,
            "no byte is left": end[1] == start[1],
            "no tensor is left": end[0] == start[0],
        },
        peak_mib=peak / MIB, limit_mib=0.65 * peak / MIB, guarded_peak_mib=capped / MIB, failures=report.failures,
        recovered=report.recovered, gradient_difference=difference, allocated_bytes=[start[1], end[1]],
        tensors=[start[0], end[0]], events={kind: kinds.count(kind) for kind in sorted(set(kinds))},
        events_left_out=report.left_out, report=str(report),
    )  # fmt: skip


def step_time() -> Found:
    """The milliseconds of a training step, and the share of one that cudaMalloc and cudaFree
    take; for ``caching``.
    """
    from torch.profiler import ProfilerActivity, profile

    model = gpt(6, 512, 8192)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = ragged(16, 0, 8192, 256)

    def step() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        next_token(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3

    for _ in range(3):
        step()
    times = [step() for _ in range(10)]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        wall = step()
    rows = [row for row in profiler.key_averages() if row.key in ("cudaMalloc", "cudaFree")]
    return {
        "step_ms": statistics.median(times), "fastest_ms": min(times), "slowest_ms": max(times), "profiled_ms": wall,
        "calls": {row.key: row.count for row in rows},
        "share": sum(row.self_cpu_time_total for row in rows) / 1e3 / wall,
    }  # fmt: skip


def caching() -> Found:
    if not ON_GPU:
        return left_out("no GPU")
    found = {}
    for name, value in (("cached", None), ("uncached", "1")):
        os.environ.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)
        if value is not None:
            os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = value
        found[name] = in_a_process(__file__, "step_time", patience_s=50)
        if "failed" in found[name]:
            return judged({f"{name} ran": False}, **found)
    ratio = found["uncached"]["step_ms"] / found["cached"]["step_ms"]
    return judged({}, uncached_over_cached=ratio, step_saved=1 - 1 / ratio, **found)


RESTARTED = '''
"""Keeps the outputs of the first forward, with their graph: what a failed one has taken never comes back."""
import os, sys
from contextlib import nullcontext

import vramlens
from guard_gpu import METER, cap, gpt, next_token, ragged

limit, log = float(sys.argv[1]), sys.argv[2]
layers, width, vocabulary, length, size = map(int, sys.argv[3:])


def note(text):
    with open(log, "a") as file:
        print(os.environ.get("VRAMLENS_MICRO_BATCH"), text, file=file)


with METER or nullcontext():
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    kept = []
    model = gpt(layers, width, vocabulary)
    for block in model.blocks:
        block.register_forward_hook(lambda *a: kept.append(a[2]) if len(kept) < layers else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    cap(limit)
    watch = vramlens.guard(model, optimizer, order=("split",), verify=False, meter=METER)
    note("begins")
    batch = ragged(size, 0, vocabulary, length)
    batch["labels"] = batch["ids"]
    losses = [float(watch.step(batch, next_token)) for _ in range(2)]
    note(f"survived {losses[0]!r}")
'''


def restart() -> Found:
    layers, width, vocabulary, length, size = 8, WIDTH, VOCABULARY, 2 * LENGTH, 4
    model = gpt(layers, width, vocabulary)
    batch = ragged(size, 0, vocabulary, length)
    batch["labels"] = batch[
        "ids"
    ].clone()  # none is ignored: parts weigh alike, which no check is there to find out
    peak = peak_of_step(model, torch.optim.AdamW(model.parameters(), lr=1e-4), batch)
    with torch.no_grad():
        loss = float(next_token(gpt(layers, width, vocabulary), batch))
    del model
    cap(None)
    paths = os.pathsep.join([str(Path(vramlens.__file__).resolve().parents[1]), str(BENCHMARKS)])
    with tempfile.TemporaryDirectory() as folder:
        program, log = Path(folder, "train.py"), Path(folder, "log")
        program.write_text(RESTARTED)
        sizes = map(str, (layers, width, vocabulary, length, size))
        run = subprocess.run(
            [sys.executable, "-m", "vramlens", "run", "--restart-on-oom", "2", str(program), str(0.65 * peak), str(log), *sizes],
            cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=PATIENCE_S - 30,
            check=False,
        )  # fmt: skip
        lines = log.read_text().splitlines() if log.exists() else []
    last = lines[-1].split() if lines else []
    survived = len(last) == 3 and last[1] == "survived"
    return judged(
        {
            "it ends well": run.returncode == 0,
            "first run: died": len(lines) == 3 and lines[0] == "None begins",
            "second run: with what was learned": len(lines) == 3 and lines[1] == f"{last[0]} begins" and last[0] != "None",
            "second run: survived": survived,
            "the same loss": survived and abs(float(last[2]) / loss - 1) <= 1e-5,
            "it says so": "restart 1 of 2 with VRAMLENS_MICRO_BATCH=" in run.stderr,
        },
        peak_mib=peak / MIB, limit_mib=0.65 * peak / MIB, log=lines, loss=loss, exit=run.returncode,
        stderr=run.stderr[-3000:],
    )  # fmt: skip


CASES: dict[str, Callable[[], Found]] = {
    "plan": plan,
    "place": place,
    "place_tied": place_tied,
    "retry": retry,
    "offload": offload,
    "step_backup": step_backup,
    "thousand": thousand,
    "real_failures": real_failures,
    "caching": caching,
    "restart": restart,
}  # fmt: skip


def one(name: str) -> None:
    """A case, or a part of one, in this process; prints what it found."""
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with METER or contextlib.nullcontext():
        print(json.dumps((CASES | {"step_time": step_time})[name]()))


def told(found: Found) -> str:
    """A line for each figure; reports and other long texts stay in the file."""
    rows = []
    for key, value in found.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        if key not in ("right", "report", "placement", "plan", "stderr") and "\n" not in text:
            rows.append(f"  {key}: {text[:300]}")
    return "\n".join(rows)


def main(words: list[str]) -> int:
    if words[:1] == ["--one"]:
        one(words[1])
        return 0
    if not ON_GPU and "--simulated" not in words:
        print(
            "gpu_check.py needs a CUDA GPU, two for its case place; --simulated runs small versions without"
        )
        return 2
    words = [word for word in words if word != "--simulated"]
    if not words or not CASES.keys() >= set(words[1:]):
        print(f"usage: gpu_check.py OUT [CASE ...], of {', '.join(CASES)}")
        return 2
    for name in (
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "VRAMLENS_MICRO_BATCH",
        "VRAMLENS_SPLIT_FILE",
    ):
        os.environ.pop(name, None)  # no expandable segments, nothing learned before
    os.makedirs(words[0], exist_ok=True)
    results: Found = {
        "device": torch.cuda.get_device_name() if ON_GPU else "simulated",
        "torch": torch.__version__,
    }
    right = []
    for name in words[1:] or CASES:
        began = time.monotonic()
        found = in_a_process(__file__, name, patience_s=PATIENCE_S)
        found["case_seconds"] = round(time.monotonic() - began, 1)
        if "left_out" in found:
            print(f"== {name}: left out: {found['left_out']}", flush=True)
        else:
            right.append(bool(found.get("right")))
            print(f"== {name}: {'right' if right[-1] else 'WRONG'}\n{told(found)}", flush=True)
            if "failed" in found:
                print(found["failed"][-1500:], flush=True)
        results[name] = found
        written(os.path.join(words[0], "guard_check.json"), results)
    print(f"{sum(right)} of {len(right)} right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
