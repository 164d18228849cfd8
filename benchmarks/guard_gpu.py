"""The guard on real programs that really run out of memory: what survives, with which gradients, and what is refused.

    python benchmarks/guard_gpu.py FOLDER [CASE ...]

needs a CUDA GPU. Each case runs in a process of its own: first undisturbed, then, in the same process, under a limit
(``set_per_process_memory_fraction``) below the peak it had, with the guard.

    trainer       a Hugging Face Trainer fine-tunes a GPT-2 (random weights, nothing is downloaded)
    detector      a detector with BatchNorm (torchvision's Faster R-CNN, else a small one): refused, then forced
    accumulation  a GPT with a gradient accumulated over four batches and ragged, ignored labels
    contrastive   a loss over pairs: refused
    overhead      the guard's cost when nothing fails, side by side in turns

Writes guard_gpu.json into FOLDER and prints a table.
"""

from __future__ import annotations

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
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from vramlens.recovery import guard

MIB = 2**20


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def cap(size_bytes: float | None) -> None:
    clean()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if size_bytes is None else size_bytes / total)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.detach().cpu().double() for name, p in model.named_parameters() if p.grad is not None}


def furthest(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference of a parameter's gradient over its norm; those that are zero but for rounding aside."""
    assert ours.keys() == theirs.keys()
    largest = max(float(one.norm()) for one in theirs.values())
    return max(float((ours[n] - theirs[n]).norm() / max(float(theirs[n].norm()), 1e-4 * largest)) for n in theirs)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), width // 64
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def gpt(layers: int = 6, width: int = 512, vocabulary: int = 8192) -> nn.Module:
    torch.manual_seed(0)
    return GPT(vocabulary, width, layers).cuda()


def ragged(size: int, seed: int, vocabulary: int = 8192, length: int = 256) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (size, length), generator=generator)
    targets = ids.clone()
    for index in range(size):
        targets[index, length - (index * 37 + seed) % (length - 8) :] = -100
    return {"ids": ids.cuda(), "labels": targets.cuda()}


def next_token(model: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def accumulation() -> dict[str, Any]:
    batches = [ragged(48, seed) for seed in range(4)]

    def train(watched: bool, limit: float | None) -> tuple[Any, dict[str, torch.Tensor], list[float], int]:
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        cap(limit)
        seen: dict[str, torch.Tensor] = {}
        optimizer.register_step_pre_hook(lambda *_: seen.update(gradients(model)))
        watch = guard(model, optimizer) if watched else None
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
        return watch, seen, losses, torch.cuda.max_memory_allocated()

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


def trainer() -> dict[str, Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        vocab_size=8192,
        n_embd=512,
        n_layer=6,
        n_head=8,
        n_positions=256,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    rows = [ragged(1, seed) for seed in range(160)]
    data = [{"input_ids": row["ids"][0].cpu(), "labels": row["labels"][0].cpu()} for row in rows]

    class Guarded(transformers.Trainer):
        """The Trainer, its forward and backward in the guard's hands; all else is its own."""

        watch: Any = None

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            if self.watch is None:
                self.watch = guard(model)
            return self.watch.step(self._prepare_inputs(inputs), lambda m, b: self.compute_loss(m, b))

    class Plain(transformers.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            return super().training_step(model, inputs)

    def train(kind: Any, limit: float | None) -> tuple[Any, dict[str, torch.Tensor], list[float], int]:
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder, per_device_train_batch_size=32, max_steps=5, logging_steps=1, save_strategy="no",
                report_to=[], disable_tqdm=True, learning_rate=1e-4, seed=0, max_grad_norm=1.0,
            )  # fmt: skip
            made = kind(model=model, args=arguments, train_dataset=data)
            cap(limit)
            first: dict[str, torch.Tensor] = {}

            class Take(transformers.TrainerCallback):
                def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                    if not first:
                        first.update(gradients(made.model))

            made.add_callback(Take())
            made.train()
            losses = [row["loss"] for row in made.state.log_history if "loss" in row]
        return made, first, losses, torch.cuda.max_memory_allocated()

    made, truth, losses, peak = train(Plain, None)
    del made
    cap(None)
    made, seen, ours, capped = train(Guarded, 0.7 * peak)
    report = made.watch.report()
    cap(None)
    return {
        "transformers": transformers.__version__, "peak_mib": peak / MIB, "limit_mib": 0.7 * peak / MIB,
        "guarded_peak_mib": capped / MIB, "gradient_difference": furthest(seen, truth), "losses": losses,
        "guarded_losses": ours, "failures": report.failures, "survived": report.failures > 0, "report": str(report),
    }  # fmt: skip


class Pyramid(nn.Module):
    """A small detector: a backbone with BatchNorm, a feature pyramid, class and box heads on each level."""

    def __init__(self, width: int = 64, classes: int = 20) -> None:
        super().__init__()
        sizes = [width, width * 2, width * 4]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b)
            )
            for a, b in zip([width, *sizes[:-1]], sizes, strict=True)
        )
        self.side = nn.ModuleList(nn.Conv2d(size, width, 1) for size in sizes)
        self.classes, self.boxes = nn.Conv2d(width, classes, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, images: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        x = self.stem(torch.stack(images))
        levels = []
        for stage in self.stages:
            x = functional.relu(stage(x))
            levels.append(x)
        top = self.side[-1](levels[-1])
        loss = top.new_zeros(())
        labels = torch.stack([target["labels"][0] for target in targets])
        boxes = torch.stack([target["boxes"][0] for target in targets])
        for index in reversed(range(len(levels))):
            if index < len(levels) - 1:
                top = functional.interpolate(top, size=levels[index].shape[-2:]) + self.side[index](levels[index])
            loss = loss + functional.cross_entropy(self.classes(top).mean((2, 3)), labels)
            loss = loss + functional.smooth_l1_loss(self.boxes(top).mean((2, 3)), boxes)
        return loss


def detector() -> dict[str, Any]:
    side, size = 256, 24
    generator = torch.Generator().manual_seed(0)
    pictures = [torch.rand(3, side, side, generator=generator).cuda() for _ in range(size)]
    targets = [
        {"boxes": torch.tensor([[8.0, 8.0, 40.0 + k, 60.0]]).cuda(), "labels": torch.tensor([k % 19 + 1]).cuda()}
        for k in range(size)
    ]
    known = find_spec("torchvision") is not None

    def build() -> tuple[nn.Module, Callable[[Any, Any], Any]]:
        torch.manual_seed(0)
        if known:
            import torchvision

            model = torchvision.models.detection.fasterrcnn_resnet50_fpn(
                weights=None, weights_backbone=None, num_classes=21, min_size=side, max_size=side
            )
            return model.cuda().train(), lambda m, b: sum(m(b[0], b[1]).values())
        return Pyramid().cuda(), lambda m, b: m(b[0], b[1])

    model, loss_fn = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    cap(None)
    torch.manual_seed(1)  # it draws which proposals to train on
    loss = loss_fn(model, (pictures, targets))
    loss.backward()
    peak = torch.cuda.max_memory_allocated()
    running = {n: b.detach().clone().cpu() for n, b in model.named_buffers() if "running_mean" in n}
    truth = gradients(model)
    undisturbed = float(loss)
    del model, loss, optimizer
    results: dict[str, Any] = {"model": "torchvision Faster R-CNN" if known else "a small pyramid of our own"}
    # cuDNN takes larger workspaces where there is room: the limit is lowered until a plain step really fails.
    share = 0.6
    while share > 0.1:
        model, loss_fn = build()
        cap(share * peak)
        torch.manual_seed(1)
        try:
            loss_fn(model, (pictures, targets)).backward()
        except torch.OutOfMemoryError:
            break
        finally:
            del model
            cap(None)
        share -= 0.05
    for strict in (True, False):
        model, loss_fn = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        seen: dict[str, torch.Tensor] = {}
        optimizer.register_step_pre_hook(lambda *_, m=model, s=seen: s.update(gradients(m)))
        cap(share * peak)
        torch.manual_seed(1)
        watch = guard(model, optimizer, strict=strict, order=("split",) if strict else ("split", "offload"))
        row: dict[str, Any] = {"refused": False}
        try:
            row["loss"] = float(watch.step((pictures, targets), loss_fn))
            row["gradient_difference"] = furthest(seen, truth)
        except torch.OutOfMemoryError:
            row["refused"] = True
        now = {n: b.detach().cpu() for n, b in model.named_buffers() if n in running}
        row["running_mean_difference"] = max(float((now[n] - running[n]).norm() / running[n].norm()) for n in running)
        row["batches_tracked"] = sorted({int(b) for n, b in model.named_buffers() if "num_batches_tracked" in n})
        row["guarded_peak_mib"] = torch.cuda.max_memory_allocated() / MIB
        row["report"] = str(watch.report())
        results["strict" if strict else "forced"] = row
        del model, optimizer, watch
        cap(None)
    # The default order: recomputation or offload instead, with the same gradients.
    model, loss_fn = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    seen = {}
    optimizer.register_step_pre_hook(lambda *_: seen.update(gradients(model)))
    cap(share * peak)
    torch.manual_seed(1)
    watch = guard(model, optimizer)
    row = {"refused": False}
    try:
        row["loss"] = float(watch.step((pictures, targets), loss_fn))
        row["gradient_difference"] = furthest(seen, truth)
    except torch.OutOfMemoryError:
        row["refused"] = True
    row["report"] = str(watch.report())
    row["guarded_peak_mib"] = torch.cuda.max_memory_allocated() / MIB
    return results | {"default": row, "peak_mib": peak / MIB, "limit_mib": share * peak / MIB, "loss": undisturbed}


def contrastive() -> dict[str, Any]:
    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        vectors = functional.normalize(model(batch["ids"]).mean(1), dim=-1)
        return functional.cross_entropy(vectors @ vectors.T / 0.1, torch.arange(len(vectors), device="cuda"))

    batch = ragged(48, 1)
    model = gpt()
    cap(None)
    loss_fn(model, batch).backward()
    peak = torch.cuda.max_memory_allocated()
    model.zero_grad()
    cap(0.6 * peak)
    watch = guard(model, order=("split",))
    refused = ""
    try:
        watch.step(batch, loss_fn)
    except torch.OutOfMemoryError as error:
        refused = str(error)
    found = watch.verify({"ids": batch["ids"][:8], "labels": batch["labels"][:8]}, loss_fn)
    return {"refused": bool(refused), "difference": found.error, "reason": found.reason, "report": str(watch.report())}


def overhead() -> dict[str, Any]:
    """A GPT in bfloat16 of about 30 ms a step, and one of about 10; plain and guarded steps in turns."""
    rows = {}
    for name, (layers, width, size) in {"large": (12, 1024, 16), "small": (6, 512, 16)}.items():
        model = gpt(layers, width, 8192)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        batch = ragged(size, 0, length=512)

        def loss_fn(model: Any, batch: Any) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return next_token(model, batch)

        watch = guard(model, optimizer)

        def plain(model: Any = model, optimizer: Any = optimizer, batch: Any = batch, loss_fn: Any = loss_fn) -> None:
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


def main() -> None:
    folder, names = sys.argv[1], sys.argv[2:] or list(CASES)
    if folder == "--one":
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        print(json.dumps(CASES[names[0]]()))
        return
    os.makedirs(folder, exist_ok=True)
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in names:
        began = time.monotonic()
        run = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True)
        lines = run.stdout.strip().splitlines()
        if run.returncode or not lines:
            results[name] = {"failed": run.stderr[-3000:]}
            print(f"{name}: failed\n{run.stderr[-1500:]}", flush=True)
        else:
            results[name] = json.loads(lines[-1])
            print(f"{name} ({time.monotonic() - began:.0f} s)", flush=True)
            print(json.dumps(results[name], indent=1), flush=True)
        with open(os.path.join(folder, "guard_gpu.json"), "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
