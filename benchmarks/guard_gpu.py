"""The guard on real programs that really run out of memory: what survives, with which gradients,
and what is refused.

    python benchmarks/guard_gpu.py FOLDER [CASE ...]

Each case runs in a process of its own: first undisturbed, then, in the same process, under a limit
(``set_per_process_memory_fraction``) below the peak it had, with the guard. Without a CUDA GPU the
programs are small and run on a simulated device, whose operators fail where it is full; there is
nothing to learn about time then.

    trainer       a Hugging Face Trainer fine-tunes a GPT-2 (random weights, nothing is downloaded), as it is: one line
    detector      torchvision's Faster R-CNN and RetinaNet with BatchNorm; with the norms frozen; what is refused
    accumulation  a GPT with a gradient accumulated over four batches and ragged, ignored labels
    contrastive   a loss over pairs: refused
    overhead      the guard's cost when nothing fails, side by side in turns (a GPU only)

A case whose package is missing says so, and the others go on. Writes guard_gpu.json into FOLDER and
prints one line a result.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpt import GPT
from torch import nn
from torch.nn import functional

from vramlens.recovery import guard, guard_trainer
from vramlens.recovery.meters import CountingMeter
from vramlens.recovery.training.rollback import host_copy
from vramlens.whole_file import whole_file

MIB = 2**20
ON_GPU = torch.cuda.is_available()
PATIENCE_S = 300 if ON_GPU else 900
DEVICE = "cuda" if ON_GPU else "cpu"
METER = None if ON_GPU else CountingMeter()


def cap(size_bytes: float | None) -> None:
    """Sets what the process may allocate (None: all), and counts peaks from now."""
    gc.collect()
    if METER is not None:
        METER.capacity_bytes = None if size_bytes is None else int(size_bytes)
        METER.restart()
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if size_bytes is None else size_bytes / total)


def peak_bytes() -> int:
    return torch.cuda.max_memory_allocated() if METER is None else METER.peak_bytes()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    return {name: host_copy(gradient, torch.float64) for name, gradient in found}


def furthest(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference of a parameter's gradient over its norm; those that are zero but
    for rounding aside.
    """
    assert ours.keys() == theirs.keys()
    largest = max(float(one.norm()) for one in theirs.values())
    return max(
        float((ours[n] - theirs[n]).norm() / max(float(theirs[n].norm()), 1e-4 * largest))
        for n in theirs
    )


# Layers, width, vocabulary, length, batch of the Trainer, of the others.
LAYERS, WIDTH, VOCABULARY, LENGTH, TRAINED, BATCH = (
    (6, 512, 8192, 256, 32, 48) if ON_GPU else (2, 64, 512, 64, 8, 12)
)


def gpt(layers: int = LAYERS, width: int = WIDTH, vocabulary: int = VOCABULARY) -> nn.Module:
    torch.manual_seed(0)
    return GPT(vocabulary, width, layers).to(DEVICE)


def ragged(
    size: int, seed: int, vocabulary: int = VOCABULARY, length: int = LENGTH
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (size, length), generator=generator)
    targets = ids.clone()
    for index in range(size):
        targets[index, length - (index * 37 + seed) % (length - 8) :] = -100
    return {"ids": ids.to(DEVICE), "labels": targets.to(DEVICE)}


def next_token(model: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def accumulation() -> dict[str, Any]:
    batches = [ragged(BATCH, seed) for seed in range(4)]

    def train(
        watched: bool, limit: float | None
    ) -> tuple[Any, dict[str, torch.Tensor], list[float], int]:
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        cap(limit)
        seen: dict[str, torch.Tensor] = {}
        optimizer.register_step_pre_hook(lambda *_: seen.update(gradients(model)))
        watch = guard(model, optimizer, meter=METER) if watched else None
        losses = []
        for index, batch in enumerate(batches):
            if watch is not None:
                losses.append(float(watch.step(batch, next_token, commit=index == 3, scale=0.25)))
            else:
                loss = next_token(model, batch)
                (loss / 4).backward()
                losses.append(float(loss.detach()))
        if watch is None:
            optimizer.step()
        return watch, seen, losses, peak_bytes()

    _, truth, losses, peak = train(False, None)
    cap(None)
    watch, seen, ours, capped = train(True, 0.6 * peak)
    cap(None)
    return {
        "peak_mib": peak / MIB, "limit_mib": 0.6 * peak / MIB, "guarded_peak_mib": capped / MIB,
        "gradient_difference": furthest(seen, truth), "losses": losses, "guarded_losses": ours,
        "failures": watch.report().failures, "report": str(watch.report()),
        "survived": watch.report().failures > 0,
    }  # fmt: skip


def fine_tuned() -> nn.Module:
    """A GPT-2 of Hugging Face's with random weights: nothing is downloaded."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=WIDTH // 64, n_positions=LENGTH, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def with_trainer(
    accumulated: int, limit: float | None, **options: Any
) -> tuple[Any, dict[str, torch.Tensor], list[float], int]:
    """A Trainer's four steps, guarded under a limit; its guard, first gradient, losses and peak.

    Args:
        options: for ``guard_trainer``.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    rows = [ragged(1, seed) for seed in range(5 * TRAINED)]
    data = [{"input_ids": row["ids"][0].cpu(), "labels": row["labels"][0].cpu()} for row in rows]
    model = fine_tuned()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=TRAINED, gradient_accumulation_steps=accumulated,
            max_steps=4, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, learning_rate=1e-4,
            seed=0, max_grad_norm=1.0, use_cpu=not ON_GPU,
        )  # fmt: skip
        made = transformers.Trainer(model=model, args=arguments, train_dataset=data)
        made.remove_callback(transformers.PrinterCallback)
        watch = None if limit is None else guard_trainer(made, meter=METER, **options)
        first: dict[str, torch.Tensor] = {}

        class Take(transformers.TrainerCallback):
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                if not first:
                    first.update(gradients(made.model))

        made.add_callback(Take())
        cap(limit)
        made.train()
        losses = [row["loss"] for row in made.state.log_history if "loss" in row]
    return watch, first, losses, peak_bytes()


def trainer() -> dict[str, Any]:
    """The Trainer as it is, with accumulation and ``num_items_in_batch``; the guard is one line
    beside it.
    """
    import transformers

    found: dict[str, Any] = {"transformers": transformers.__version__}
    for accumulated in (1, 4):
        cap(None)
        _, truth, losses, peak = with_trainer(accumulated, None)
        cap(None)
        watch, seen, ours, capped = with_trainer(accumulated, 0.7 * peak)
        cap(None)
        report = watch.report()
        found[f"accumulated over {accumulated}"] = {
            "peak_mib": peak / MIB, "limit_mib": 0.7 * peak / MIB, "guarded_peak_mib": capped / MIB,
            "gradient_difference": furthest(seen, truth), "losses": losses, "guarded_losses": ours,
            "failures": report.failures, "survived": report.failures > 0, "report": str(report),
        }  # fmt: skip
    return found


def detectors() -> dict[str, Callable[[], nn.Module]]:
    """torchvision's own, random weights: its ResNets have BatchNorm then, which learns, or is
    frozen as for tuning.
    """
    from torchvision.models import detection as made

    side = 256 if ON_GPU else 96
    backbone = (
        {"backbone_name": "resnet50"}
        if ON_GPU
        else {"backbone_name": "resnet18", "returned_layers": [1, 2]}
    )

    def build(kind: Any, frozen: bool, **options: Any) -> nn.Module:
        torch.manual_seed(0)
        body = made.backbone_utils.resnet_fpn_backbone(
            weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5, **backbone
        )
        if not ON_GPU:  # three levels only, and a head with fewer than 14 million parameters
            anchors = made.anchor_utils.AnchorGenerator(
                ((8,), (16,), (32,)), ((0.5, 1.0, 2.0),) * 3
            )
            options["anchor_generator" if kind is made.RetinaNet else "rpn_anchor_generator"] = (
                anchors
            )
        if not ON_GPU and kind is made.FasterRCNN:
            options["box_head"] = made.faster_rcnn.TwoMLPHead(256 * 7 * 7, 32)
            options["box_predictor"] = made.faster_rcnn.FastRCNNPredictor(32, 21)
        classes = None if "box_predictor" in options else 21
        model = kind(body, classes, min_size=side, max_size=side, **options).to(DEVICE).train()
        for module in model.modules():
            if frozen and isinstance(module, nn.BatchNorm2d):
                module.eval()
        return model

    few = {} if ON_GPU else {"rpn_batch_size_per_image": 16, "box_batch_size_per_image": 16}
    return {
        "RetinaNet, norms frozen": partial(build, made.RetinaNet, True),
        "RetinaNet, BatchNorm": partial(build, made.RetinaNet, False),
        "Faster R-CNN, BatchNorm": partial(build, made.FasterRCNN, False, **few),
    }


def pictures() -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Images of two sizes; one to three boxes each."""
    side, size = (256, 24) if ON_GPU else (96, 12)
    generator = torch.Generator().manual_seed(0)
    images = [
        torch.rand(3, side, side - side // 4 * (k % 2), generator=generator).to(DEVICE)
        for k in range(size)
    ]
    targets = []
    for k in range(size):
        corners = torch.rand(k % 3 + 1, 2, generator=generator) * side / 2
        boxes = torch.cat(
            [corners, corners + 8 + torch.rand(k % 3 + 1, 2, generator=generator) * side / 8], 1
        )
        targets.append(
            {"boxes": boxes.to(DEVICE), "labels": (torch.arange(k % 3 + 1) + k % 18 + 1).to(DEVICE)}
        )
    return images, targets


def detected(model: Any, batch: Any) -> torch.Tensor:
    return sum(model(*batch).values())


def detector() -> dict[str, Any]:
    import torchvision

    batch = pictures()
    results: dict[str, Any] = {"torchvision": torchvision.__version__}

    def undisturbed(
        build: Callable[[], nn.Module],
    ) -> tuple[dict[str, torch.Tensor], Any, int, float]:
        cap(None)
        model = build()
        torch.manual_seed(1)  # Faster R-CNN draws which proposals to learn from
        loss = detected(model, batch)
        loss.backward()
        return gradients(model), running(model), peak_bytes(), float(loss.detach())

    def running(model: nn.Module) -> dict[str, torch.Tensor]:
        return {n: host_copy(b) for n, b in model.named_buffers() if "running_mean" in n}

    def fails(build: Callable[[], nn.Module], limit: float) -> bool:
        model = build()
        cap(limit)
        torch.manual_seed(1)
        with contextlib.suppress(torch.OutOfMemoryError):
            detected(model, batch).backward()
            return False
        return True

    for name, build in detectors().items():
        _, _, peak, _ = undisturbed(build)
        # cuDNN takes larger workspaces where there is room: the limit is lowered until a plain step
        #     really fails.
        share = 0.7 if ON_GPU or "frozen" in name else 0.97
        while share > 0.2 and not fails(build, share * peak):
            share -= 0.05
        # Now: cuDNN keeps to the algorithms that it chose when room was scarce, and others round
        #     otherwise.
        truth, means, _, loss = undisturbed(build)
        again = undisturbed(build)[0]
        row: dict[str, Any] = {
            "peak_mib": peak / MIB, "limit_mib": share * peak / MIB, "loss": loss,
            "difference_of_two_undisturbed": furthest(again, truth),
        }  # fmt: skip
        ways: dict[str, dict[str, Any]] = {
            "default": {},
            "split only": {"order": ("split",)},
            "forced": {"order": ("split", "offload"), "strict": False},
        }
        for way, options in ways.items():
            cap(None)
            model = build()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            seen: dict[str, torch.Tensor] = {}
            optimizer.register_step_pre_hook(lambda *_, m=model, s=seen: s.update(gradients(m)))
            cap(share * peak)
            torch.manual_seed(1)
            watch = guard(model, optimizer, meter=METER, **options)
            one: dict[str, Any] = {"refused": False}
            try:
                one["loss"] = float(watch.step(batch, detected))
                one["gradient_difference"] = furthest(seen, truth)
                now = running(model)
                one["running_mean_difference"] = max(
                    float((now[n] - means[n]).norm() / means[n].norm().clamp(min=1e-12))
                    for n in means
                )
            except torch.OutOfMemoryError as error:
                one["refused"], one["text"] = True, str(error)
            one["peak_mib"], one["failures"] = peak_bytes() / MIB, watch.report().failures
            one["report"] = str(watch.report())
            row[way] = one
            del model, optimizer, watch
        results[name] = row
    cap(None)
    return results


def contrastive() -> dict[str, Any]:
    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        vectors = functional.normalize(model(batch["ids"]).mean(1), dim=-1)
        return functional.cross_entropy(
            vectors @ vectors.T / 0.1, torch.arange(len(vectors), device=DEVICE)
        )

    batch = ragged(BATCH, 1)
    model = gpt()
    cap(None)
    loss_fn(model, batch).backward()
    peak = peak_bytes()
    model.zero_grad()
    cap(0.6 * peak)
    watch = guard(model, order=("split",), meter=METER)
    refused = ""
    try:
        watch.step(batch, loss_fn)
    except torch.OutOfMemoryError as error:
        refused = str(error)
    found = watch.verify({"ids": batch["ids"][:8], "labels": batch["labels"][:8]}, loss_fn)
    return {
        "refused": bool(refused),
        "difference": found.error,
        "reason": found.reason,
        "report": str(watch.report()),
    }


def overhead() -> dict[str, Any]:
    """A GPT in bfloat16 of about 30 ms a step, and one of about 10; plain and guarded steps in
    turns.
    """
    rows = {}
    for name, (layers, width, size) in {"large": (12, 1024, 16), "small": (6, 512, 16)}.items():
        model = gpt(layers, width, 8192)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        batch = ragged(size, 0, length=512)

        def loss_fn(model: Any, batch: Any) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return next_token(model, batch)

        watch = guard(model, optimizer)

        def plain(
            model: Any = model,
            optimizer: Any = optimizer,
            batch: Any = batch,
            loss_fn: Any = loss_fn,
        ) -> None:
            loss_fn(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def guarded(watch: Any = watch, batch: Any = batch, loss_fn: Any = loss_fn) -> None:
            watch.step(batch, loss_fn)

        def timed(act: Callable[[], None], count: int = 25) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                act()
            torch.cuda.synchronize()
            return (time.perf_counter() - began) / count * 1e3

        for act in (plain, guarded):
            timed(act, 5)
        pairs = []
        for turn in range(20):
            order = (plain, guarded) if turn % 2 else (guarded, plain)
            found = {act: timed(act) for act in order}
            pairs.append((found[plain], found[guarded]))
        ratios = sorted(b / a for a, b in pairs)
        rows[name] = {
            "plain_ms": statistics.median(a for a, _ in pairs), "guarded_ms": statistics.median(b for _, b in pairs),
            "cost_percent": (statistics.median(ratios) - 1) * 100,
            "quartiles_percent": [(ratios[5] - 1) * 100, (ratios[14] - 1) * 100],
        }  # fmt: skip
    return rows


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "trainer": trainer,
    "detector": detector,
    "accumulation": accumulation,
    "contrastive": contrastive,
    "overhead": overhead,
}  # fmt: skip


def in_a_process(script: str, *words: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """What a part of a script found, run with ``--one`` and for so long at most; else why it
    failed.
    """
    try:
        run = subprocess.run(
            [sys.executable, script, "--one", *words],
            capture_output=True,
            text=True,
            timeout=patience_s,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {patience_s} s"}
    lines = run.stdout.strip().splitlines()
    if run.returncode or not lines:
        return {"failed": run.stderr[-3000:].strip() or f"it ended with code {run.returncode}"}
    return dict(json.loads(lines[-1]))


def written(path: str, results: dict[str, Any]) -> None:
    """A file that is whole at any time: what is done stays if the time is up."""
    with whole_file(path) as file:
        file.write(json.dumps(results, indent=1).encode())


def told(name: str, found: Any) -> list[str]:
    """A line for each row of figures in a result."""
    if not isinstance(found, dict):
        return []
    lines = [line for key, value in found.items() for line in told(f"{name}, {key}", value)]
    keys = ("peak_mib", "limit_mib", "failures", "gradient_difference", "difference_of_two_undisturbed", "refused",
            "difference", "cost_percent", "failed", "missing")  # fmt: skip
    found = (
        {**found, "failed": str(found["failed"]).splitlines()[-1][:300]}
        if "failed" in found
        else found
    )
    figures = [f"{key} {found[key]:.4g}" if isinstance(found[key], float) else f"{key} {found[key]}"
               for key in keys if key in found]  # fmt: skip
    return [f"{name}: {', '.join(figures)}", *lines] if figures else lines


def or_missing(case: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a case found, or which package it lacks."""
    try:
        return case()
    except ImportError as error:
        return {"missing": f"{error.name or 'a package'} cannot be imported: {error}"}


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, names = (
        sys.argv[1],
        sys.argv[2:] or [name for name in CASES if ON_GPU or name != "overhead"],
    )
    if folder == "--one":
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        with METER or contextlib.nullcontext():
            print(json.dumps(or_missing(CASES[names[0]])))
        return
    os.makedirs(folder, exist_ok=True)
    device = torch.cuda.get_device_name() if ON_GPU else "a simulated device on the CPU"
    results: dict[str, Any] = {"device": device, "torch": torch.__version__}
    for name in names:
        began = time.monotonic()
        results[name] = in_a_process(__file__, name)
        print(
            f"{name} ({time.monotonic() - began:.0f} s)",
            *told(name, results[name]),
            sep="\n  ",
            flush=True,
        )
        written(os.path.join(folder, "guard_gpu.json"), results)


if __name__ == "__main__":
    main()
