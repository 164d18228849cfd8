"""The largest batch of six models by vramlens, by Lightning's finder, by accelerate's, and in
truth, on one GPU.

    python benchmarks/find_batch_size.py FOLDER [MODEL ...]

Each process may have 6 GiB (``set_per_process_memory_fraction``). The truth is bisection with real
failures: two steps each. Lightning's and accelerate's finders are used as their documentation
shows; where a package is missing, its column says so. Each model runs in a process of its own, nine
minutes at most. find_batch_size.json in FOLDER is whole after
each model and keeps those of earlier calls: where a command may take ten minutes, say one model a
command. Prints a table.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from gpt import Block
from torch import nn
from torch.nn import functional

from vramlens.whole_file import whole_file

CAP_BYTES = 6 * 2**30
PATIENCE_S = 540


class Tokens(nn.Module):
    def __init__(
        self, vocabulary: int, width: int, layers: int, causal: bool = True, classes: int = 0
    ) -> None:
        super().__init__()
        self.tokens, self.classes = nn.Embedding(vocabulary, width), classes
        self.blocks = nn.Sequential(*(Block(width, width // 64, causal) for _ in range(layers)))
        self.head = nn.Linear(width, classes or vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tokens(ids))
        return self.head(x.mean(1) if self.classes else x)


class Residual(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
        )
        self.b = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.short = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.b(self.a(x)) + self.short(x))


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [width, width * 2, width * 4]
        self.down = nn.ModuleList(
            Residual(a, b, 1) for a, b in zip([3, *sizes[:-1]], sizes, strict=True)
        )
        self.up = nn.ModuleList(Residual(b + a, a, 1) for a, b in itertools.pairwise(sizes))
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for index, layer in enumerate(self.down):
            x = layer(x if index == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for layer, skipped in zip(reversed(self.up), reversed(kept[:-1]), strict=True):
            x = layer(torch.cat([functional.interpolate(x, scale_factor=2), skipped], 1))
        return self.out(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(128, 512, 3, batch_first=True), nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


def residual_net() -> nn.Module:
    widths = [64, 128, 256, 512]
    blocks = [Residual(a, b, 2) for a, b in zip([64, *widths[:-1]], widths, strict=True)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(512, 1000),
    )  # fmt: skip


def labels(model: Any, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    return functional.cross_entropy(out.flatten(0, -2), batch[1].flatten())


def squares(model: Any, batch: Any) -> torch.Tensor:
    return model(batch[0]).square().mean()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def ids(length: int, vocabulary: int, classes: int = 0) -> Callable[[int], Any]:
    def make(size: int) -> Any:
        tokens = torch.randint(0, vocabulary, (size, length), device="cuda")
        return tokens, torch.randint(0, classes, (size,), device="cuda") if classes else tokens

    return make


def images(side: int, classes: int = 1000) -> Callable[[int], Any]:
    def make(size: int) -> Any:
        return torch.randn(size, 3, side, side, device="cuda"), torch.randint(
            0, classes, (size,), device="cuda"
        )

    return make


def half(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def loss_fn(model: Any, batch: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return loss(model, batch)

    return loss_fn


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], Any, Any]] = {
    "gpt": (lambda: Tokens(16_000, 512, 6), ids(256, 16_000), labels, adam),
    "gpt bf16": (lambda: Tokens(32_000, 768, 8), ids(512, 32_000), half(labels), adam),
    "encoder": (lambda: Tokens(30_000, 768, 8, False, 10), ids(256, 30_000, 10), labels, adam),
    "residual net": (residual_net, images(224), labels, momentum),
    "u-net": (UNet, images(128), squares, adam),
    "lstm": (Recurrent, lambda n: (torch.randn(n, 200, 128, device="cuda"), None), squares, adam),
}


def steps(name: str, size: int, count: int = 2) -> None:
    build, make_batch, loss_fn, optimizer_fn = MODELS[name]
    model = build().cuda()
    optimizer = optimizer_fn(model.parameters())
    for _ in range(count):
        loss_fn(model, make_batch(size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def truth(name: str, near: int) -> dict[str, Any]:
    began, tries, failures = time.perf_counter(), 0, 0

    def fits(size: int) -> bool:
        nonlocal tries, failures
        tries += 1
        try:
            steps(name, size)
        except torch.OutOfMemoryError:
            failures += 1
            fine = False
        else:
            fine = True
        clean()
        return fine

    low, high = 0, max(2, int(near * 1.1) + 1)
    if near and fits(int(near * 0.9) or 1):
        low = int(near * 0.9) or 1
    while fits(high):
        low, high = high, high * 2
    while high - low > max(1, low // 200):  # to half a percent
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {
        "size": low,
        "probes": tries,
        "failures": failures,
        "seconds": time.perf_counter() - began,
    }


def ours(name: str) -> dict[str, Any]:
    from vramlens.recovery import find_batch_size

    build, make_batch, loss_fn, optimizer_fn = MODELS[name]
    model = build().cuda()
    optimizer = optimizer_fn(model.parameters())
    began = time.perf_counter()
    found = find_batch_size(model, make_batch, loss_fn, optimizer)
    seconds = time.perf_counter() - began
    return {
        "size": found.size, "low": found.low, "high": found.high, "probes": len(found.probes), "seconds": seconds,
        "failures": found.failures, "replayed": found.replayed,
        "probe_sizes": [probe.size for probe in found.probes], "text": str(found),
        "reserved_bytes": [probe.reserved_bytes for probe in found.probes],
        "peak_bytes": [probe.peak_bytes for probe in found.probes],
        "waste_bytes": [probe.waste_bytes for probe in found.probes],
        "retries": [probe.retries for probe in found.probes],
    }  # fmt: skip


def accelerates(name: str, start: int) -> dict[str, Any]:
    try:
        from accelerate.utils import find_executable_batch_size
    except ImportError:
        return {"missing": "accelerate is not installed"}
    began, tried = time.perf_counter(), []

    @find_executable_batch_size(starting_batch_size=start)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        steps(name, batch_size, 3)
        return batch_size

    size = train()
    return {
        "size": size,
        "probes": len(tried),
        "failures": len(tried) - 1,
        "seconds": time.perf_counter() - began,
    }


def lightnings(name: str) -> dict[str, Any]:
    lightning: Any
    try:
        import lightning.pytorch as lightning
    except ImportError:
        try:
            import pytorch_lightning as lightning
        except ImportError:
            return {"missing": "Lightning is not installed"}
    import logging

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    build, make_batch, loss_fn, optimizer_fn = MODELS[name]
    failures, tried = [], []

    class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 10**6

        def __getitem__(self, index: int) -> int:
            return index

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.batch_size = build(), 2

        def training_step(self, batch: Any, index: int) -> Any:
            if not tried or tried[-1] != len(batch):
                tried.append(len(batch))
            try:
                return loss_fn(self.net, make_batch(len(batch)))
            except torch.OutOfMemoryError:
                failures.append(len(batch))
                raise

        def configure_optimizers(self) -> Any:
            return optimizer_fn(self.net.parameters())

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Samples(), batch_size=self.batch_size)

    began = time.perf_counter()
    module = Module()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer = lightning.Trainer(
            accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tempfile.gettempdir(),
        )  # fmt: skip
        size = lightning.tuner.Tuner(trainer).scale_batch_size(
            module, mode="binsearch", max_trials=25
        )
    return {
        "size": size, "probes": len(tried), "failures": len({*failures}), "seconds": time.perf_counter() - began,
        "note": "failures in its backward are not counted",
    }  # fmt: skip


def one(name: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(CAP_BYTES / total)
    steps(
        name, 1 if name in ("gpt", "gpt bf16", "encoder", "lstm") else 2, 1
    )  # libraries load, cuBLAS makes its workspaces
    clean()
    row: dict[str, Any] = {"model": name, "vramlens": ours(name)}
    clean()
    row["truth"] = truth(name, row["vramlens"]["size"])
    for other, find in (
        ("accelerate", lambda: accelerates(name, 2 * row["truth"]["size"])),
        ("lightning", lambda: lightnings(name)),
    ):
        clean()
        try:
            row[other] = find()
        except Exception as error:
            row[other] = {"missing": f"failed: {type(error).__name__}: {str(error)[:150]}"}
    return row


def run(name: str) -> dict[str, Any]:
    """A model's row, from a process of its own; else why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "failed": f"it took more than {PATIENCE_S} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        return {"model": name, "failed": last[:200]}
    return dict(json.loads(lines[-1]))


def lines_of(row: dict[str, Any]) -> list[str]:
    """A model's rows of the table."""
    if "failed" in row:
        return [f"{row['model']:13} failed: {row['failed']}"]
    real, lines = row["truth"]["size"], []
    for finder in ("vramlens", "accelerate", "lightning"):
        found = row[finder]
        start = f"{row['model']:13} {real:6} {finder:11}"
        if "missing" in found:
            lines.append(f"{start} {found['missing']}")
            continue
        share = f"{found['size'] / real:8.1%}" if real else "       -"
        lines.append(
            f"{start} {found['size']:6} {share} {found['probes']:6} {found['failures']:6} {found['seconds']:8.2f}"
        )
    return lines


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, names = sys.argv[1], sys.argv[2:] or list(MODELS)
    if not torch.cuda.is_available():
        sys.exit(
            "find_batch_size: this needs a CUDA GPU; find_batch_size_simulated.py does without"
        )
    if folder == "--one":
        print(json.dumps(one(names[0])))
        return
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"find_batch_size: {unknown[0]!r} is no model: say {', '.join(MODELS)}")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "find_batch_size.json")
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        before = json.load(file)
        if (before.get("device"), before.get("torch")) == (found["device"], found["torch"]):
            found = before
    print(
        f"{'model':13} {'truth':>6} {'finder':11} {'found':>6} {'of truth':>8} {'probes':>6} {'failed':>6}"
        f" {'seconds':>8}"
    )
    for name in names:
        row = run(name)
        print(*lines_of(row), sep="\n", flush=True)
        found["rows"] = [one for one in found["rows"] if one["model"] != name] + [row]
        with whole_file(path) as text:
            text.write(json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
