"""The programs behind tests/data/found/: small real runs whose memory findings are known, one function each.

    python train/programs.py NAME OUTDIR            run one program (needs a CUDA GPU)
    python train/programs.py --list                 the names
    python train/programs.py --pack OUTDIR DEST     OUTDIR's snapshots, made neutral and compressed, with their truth

A run leaves OUTDIR/NAME.pickle (what torch.cuda.memory._dump_snapshot writes) and OUTDIR/NAME.json (the truth: what
the allocator itself said). Copy this file to train/ and start it from the folder above, so that frames read
train/programs.py. Where a program has a better twin, `run.variant` is true in a second process of
the same program that runs first: the bytes that the change frees are measured, never computed.

Truth (bytes unless named otherwise):
    stats         memory_stats() when the snapshot was written (after a failure: when the program was over), peaks of
                  the whole recorded span
    stats_at_oom  the same inside the out-of-memory observer, as are mem_get_info_at_oom and nvml_at_oom; `oom` is what
                  the observer was given, `oom_message` the error's text
    steps         memory_stats()'s peaks of each step, in order: one list a counter; the peak is reset between steps
    facts         what only this program knows (bytes of parameters, of a checkpoint, ...)
    variant       {what, conf, failed, stats, steps, facts, peak_requested_less}: the twin; the last is this run's peak
                  minus the twin's. Where the twin is a fix, it is recorded too, as NAME_fixed: NAME's finding must
                  not be made there
    mem_get_info  free and total bytes of the device (nothing else ran on it); `nvml`: this process's own bytes on the
                  device as the driver counts them (null where it would not say)
"""

from __future__ import annotations

import json
import lzma
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30


def pack(source: Path, target: Path) -> None:
    """Writes TARGET/NAME.pickle.xz and NAME.json: the same objects, still shared, with neutral file names."""
    path = r"/[^\s\"']*"  # also inside the source text that fx frames carry
    rules = [
        (re.compile(path + r"/lib/python3\.\d+/(?:site|dist)-packages/"), "/opt/venv/lib/python3.12/site-packages/"),
        (re.compile(path + r"/lib/(python3\.\d+)/(?!site-packages|dist-packages)"), r"/usr/lib/\1/"),
        (re.compile(path + r"/train/programs\.py"), "train/programs.py"),
        (re.compile(path + r"/torchinductor_[^/]+/"), "/tmp/torchinductor_user/"),
    ]
    strings: dict[str, str] = {}
    seen: set[int] = set()

    def text(value: str) -> str:
        if value not in strings:
            new = value
            for pattern, replacement in rules:
                new = pattern.sub(replacement, new)
            strings[value] = new
        return strings[value]

    def neutral(value: object) -> None:
        if id(value) in seen or not isinstance(value, (dict, list)):
            return
        seen.add(id(value))
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(item, str):
                value[key] = text(item)
            else:
                neutral(item)

    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.pickle")):
        snapshot = pickle.loads(path.read_bytes())
        seen.clear()
        neutral(snapshot)
        data = lzma.compress(pickle.dumps(snapshot, protocol=4), preset=9 | lzma.PRESET_EXTREME)
        (target / f"{path.name}.xz").write_bytes(data)
        truth = json.loads(path.with_suffix(".json").read_text())
        numbers = re.compile(r"\[\s+(-?\d[-\d,\s]*?)\s+\]")
        lines = numbers.sub(lambda m: f"[{' '.join(m[1].split())}]", json.dumps(truth, indent=1))
        (target / f"{path.stem}.json").write_text(lines + "\n")


if __name__ == "__main__" and sys.argv[1:2] == ["--pack"]:
    pack(Path(sys.argv[2]), Path(sys.argv[3]))
    sys.exit()

CONF = ""
if sys.argv[1:2] == ["oom_expandable"] or (sys.argv[1:2] == ["oom_holes"] and "--variant" in sys.argv):
    CONF = "expandable_segments:True"
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = CONF
if sys.argv[1:2] == ["compiled_fx"]:
    os.environ["TORCH_ENRICH_RPOFILER_STACK_TRACE"] = "1"  # PyTorch's own spelling

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

STATS = [
    f"{kind}_bytes.all.{when}"
    for kind in ("requested", "allocated", "active", "reserved", "inactive_split")
    for when in ("peak", "current")
]
COUNTS = [
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
    "allocation.all.allocated",
    "allocation.all.current",
    "segment.all.current",
]
PROGRAMS: dict[str, dict] = {}


def program(*, fixed: str = "", variant: str = "", late: bool = False, oom: bool = False, fx: bool = False, **record):
    """Registers a program: `fixed` or `variant` says what its twin does, `record` goes to the recorder."""

    def add(function):
        PROGRAMS[function.__name__] = dict(
            function=function, fixed=fixed, variant=fixed or variant, late=late, oom=oom, fx=fx, record=record
        )
        return function

    return add


class Run:
    """One run of one program: starts the recording, counts steps, keeps the truth."""

    def __init__(self, name: str, out: Path, variant: bool) -> None:
        self.name, self.out, self.variant = name, out, variant
        self.spec = PROGRAMS[name]
        self.tag = f"{name}_fixed" if variant else name
        self.recorded = bool(self.spec["fixed"]) or not variant
        self.peaks: dict[str, int] = {}
        self.twin: dict = {}
        self.truth: dict = {
            "workload": name,
            "what": self.spec["function"].__doc__,
            "conf": CONF,
            "stacks": "python",
            "torch": torch.__version__,
            "steps": {},
            "facts": {},
        }
        if variant:
            self.truth["fixed"] = self.spec["variant"]

    @property
    def facts(self) -> dict:
        return self.truth["facts"]

    def stats(self) -> dict[str, int]:
        """memory_stats(), with peaks of the whole recorded span."""
        now = torch.cuda.memory_stats()
        for key in STATS:
            if key.endswith("peak"):
                self.peaks[key] = max(self.peaks.get(key, 0), now.get(key, 0))
        return {k: self.peaks.get(k, now.get(k, 0)) for k in STATS} | {k: now.get(k, 0) for k in COUNTS}

    def start(self) -> None:
        """Begins recording (a program with late=True calls it itself); peaks count from here."""
        if self.spec["late"]:
            self.truth["stats_before"] = self.stats()
        torch.cuda.reset_peak_memory_stats()
        self.peaks.clear()
        self.truth["steps"].clear()
        if self.recorded:
            settings = {"stacks": "python", "max_entries": 1_000_000} | self.spec["record"]
            self.truth.update(stacks=settings["stacks"], max_entries=settings["max_entries"])
            torch.cuda.memory._record_memory_history(**settings)
            if self.spec["oom"]:
                torch._C._cuda_attach_out_of_memory_observer(self.failed)

    def step(self) -> None:
        """Ends a step: its peaks are kept and reset."""
        if "stats" in self.truth:  # what comes after the recording
            return
        now = torch.cuda.memory_stats()
        for key in STATS:
            if key.endswith("peak"):
                self.truth["steps"].setdefault(key.split(".")[0], []).append(now.get(key, 0))
        self.stats()
        torch.cuda.reset_peak_memory_stats()

    def owns(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        """Notes the bytes of parameters, gradients and optimizer state as they are now."""
        parameters = list(model.parameters())
        self.facts["parameter_bytes"] = sum(p.nbytes for p in parameters)
        self.facts["buffer_bytes"] = sum(b.nbytes for b in model.buffers())
        self.facts["gradient_bytes"] = sum(p.grad.nbytes for p in parameters if p.grad is not None)
        self.facts["optimizer_bytes"] = sum(
            t.nbytes
            for o in optimizers
            for s in o.state.values()
            for t in s.values()
            if isinstance(t, torch.Tensor) and t.is_cuda
        )

    def end(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        """Ends the recording while the model and all else are alive."""
        self.owns(model, *optimizers)
        self.finish()

    def cap(self, size_bytes: int, twin: bool = False) -> None:
        """Lets the process reserve no more than so many bytes (whole MiB); the twin has no such limit, unless told."""
        size_bytes = size_bytes // MIB * MIB
        if twin or not self.variant:
            self.truth["cap_bytes"] = size_bytes
            torch.cuda.set_per_process_memory_fraction(size_bytes / torch.cuda.get_device_properties(0).total_memory)

    def failed(self, device: int, requested: int, device_allocated: int, device_free: int) -> None:
        """The observer: the snapshot of the moment of failure (of several, the last)."""
        self.truth["oom"] = {
            "device": device,
            "requested": requested,
            "device_allocated": device_allocated,
            "device_free": device_free,
        }
        self.truth.update(
            stats_at_oom=self.stats(), mem_get_info_at_oom=torch.cuda.mem_get_info(), nvml_at_oom=own_bytes()
        )
        self.snapshot()

    def snapshot(self) -> None:
        torch.cuda.memory._dump_snapshot(str(self.out / f"{self.tag}.pickle"), augment_with_fx_traces=self.spec["fx"])

    def finish(self) -> None:
        """Takes the figures and writes the snapshot; the program may go on to measure what comes next."""
        if "stats" in self.truth:
            return
        torch.cuda.synchronize()
        self.truth["stats"] = self.stats()
        self.truth["mem_get_info"] = torch.cuda.mem_get_info()
        self.truth["nvml"] = own_bytes()
        if self.recorded:
            if not self.truth.get("oom"):
                self.snapshot()
            torch.cuda.memory._record_memory_history(None)

    def main(self) -> None:
        if self.spec["variant"] and not self.variant:
            subprocess.run([sys.executable, sys.argv[0], self.name, str(self.out), "--variant"], check=True)
            path = self.out / f"{self.name}_fixed.json"
            self.twin = json.loads(path.read_text())
            if not self.spec["fixed"]:
                path.unlink()
        torch.manual_seed(0)
        random.seed(0)
        torch.cuda.init()
        torch.cuda.synchronize()
        self.truth["device"] = torch.cuda.get_device_name(0)
        self.truth["total_bytes"] = torch.cuda.get_device_properties(0).total_memory
        if not self.spec["late"]:
            self.start()
        try:
            self.spec["function"](self)
        except torch.OutOfMemoryError as error:
            self.truth["oom_message"] = str(error)
        self.finish()
        if self.twin:
            less = self.truth["stats"]["requested_bytes.all.peak"] - self.twin["stats"]["requested_bytes.all.peak"]
            self.truth["variant"] = {
                "what": self.spec["variant"],
                "failed": "oom_message" in self.twin,
                "peak_requested_less": less,
            } | {k: self.twin[k] for k in ("conf", "stats", "steps", "facts")}
        (self.out / f"{self.tag}.json").write_text(json.dumps(self.truth, indent=1))
        stats = self.truth["stats"]
        print(
            self.tag,
            "requested",
            stats["requested_bytes.all.peak"],
            "reserved",
            stats["reserved_bytes.all.peak"],
            "ooms",
            stats["num_ooms"],
            self.facts,
            self.truth.get("oom_message", "")[:70],
        )


def own_bytes() -> int | None:
    """This process's bytes on the device as the driver counts them, None where it does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid():
                return process.usedGpuMemory
    except Exception:
        pass
    return None


class Block(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down, self.h = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), h

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self, d: int = 256, layers: int = 2, vocab: int = 4096, ctx: int = 2048) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, d // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.checkpointed = False

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            if self.checkpointed:
                from torch.utils.checkpoint import checkpoint

                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x))


def batch_of(b: int, t: int, vocab: int = 4096):
    return torch.randint(0, vocab, (b, t), device="cuda")


def loss_of(model, ids):
    out = model(ids)
    return F.cross_entropy(out.view(-1, out.shape[-1]), ids.view(-1))


def train_step(model, opt, b: int, t: int) -> None:
    loss = loss_of(model, batch_of(b, t))
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)


@program(fixed="zero_grad(set_to_none=True) before the forward pass")
def grads_kept(run):
    """The last step's gradients stay alive through the next forward pass."""
    model = GPT(d=512, layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        ids = batch_of(8, 256)
        if run.variant:
            opt.zero_grad(set_to_none=True)
        loss = loss_of(model, ids)
        if not run.variant:
            opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        run.step()
    run.end(model, opt)


@program(variant="zero_grad(set_to_none=True)")
def grads_zeroed(run):
    """zero_grad(set_to_none=False) after every step: gradients are never freed, through the next forward pass."""
    model = GPT(d=512, layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        loss = loss_of(model, batch_of(8, 256))
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=run.variant)
        run.step()
    run.end(model, opt)


@program(fixed="validate() under torch.no_grad()")
def eval_graph(run):
    """Validation without no_grad: every batch builds a graph that nothing uses, the last one still held."""
    model = GPT(layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())

    def validate():
        model.eval()
        right = 0
        with torch.set_grad_enabled(not run.variant):
            for _ in range(4):
                ids = batch_of(16, 256)
                out = model(ids)
                right += (out.argmax(-1) == ids).sum().item()
        model.train()
        return right

    for _ in range(3):
        train_step(model, opt, 12, 256)
        run.step()
    validate()
    run.step()
    for _ in range(2):
        train_step(model, opt, 12, 256)
        run.step()
    run.facts["validation_is_step"] = 3
    run.end(model, opt)


def held_twice(checkpoint, *held) -> int:
    """Bytes on the GPU that only the checkpoint keeps: no tensor of `held` shares their storage."""

    def storages(tensors):
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.is_cuda}

    others = storages(t for h in held for t in tensors_in(h))
    return sum(size for address, size in storages(tensors_in(checkpoint)).items() if address not in others)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def saved_checkpoint(model, opt=None) -> str:
    """A checkpoint file of a model on the CPU (with optimizer state after one step), as an earlier run would leave."""
    path = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")
    if opt is None:
        torch.save(model.state_dict(), path)
    else:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        opt.step()
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, path)
    return path


@program(fixed="torch.load(path, map_location='cpu')")
def double_load(run):
    """The checkpoint is loaded to the GPU beside the model and kept: the weights are there twice."""
    path = saved_checkpoint(GPT(d=512, layers=3))
    model = GPT(d=512, layers=3).cuda()
    state = torch.load(path, map_location="cpu" if run.variant else "cuda")
    model.load_state_dict(state)
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        train_step(model, opt, 4, 256)
        run.step()
    run.end(model, opt)
    run.facts["doubled_bytes"] = held_twice(state, model.state_dict())


@program(variant="torch.load(path, map_location='cpu')")
def load_dropped(run):
    """The checkpoint goes to the GPU but is dropped once loaded: no problem, training's peak is higher anyway."""
    path = saved_checkpoint(GPT(d=512, layers=3))
    model = GPT(d=512, layers=3).cuda()
    state = torch.load(path, map_location="cpu" if run.variant else "cuda")
    model.load_state_dict(state)
    run.facts["doubled_while_loading_bytes"] = held_twice(state, model.state_dict())
    del state
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        train_step(model, opt, 4, 256)
        run.step()
    run.end(model, opt)


@program(fixed="torch.load(path, map_location='cpu')")
def resume_optimizer(run):
    """Weights and optimizer state are loaded to the GPU and the checkpoint is kept: weights twice, state shared."""
    first = GPT(d=512, layers=3)
    path = saved_checkpoint(first, torch.optim.AdamW(first.parameters()))
    model = GPT(d=512, layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())
    checkpoint = torch.load(path, map_location="cpu" if run.variant else "cuda")
    model.load_state_dict(checkpoint["model"])
    opt.load_state_dict(checkpoint["optimizer"])
    for _ in range(3):
        train_step(model, opt, 4, 256)
        run.step()
    run.end(model, opt)
    state = {i: s for i, s in enumerate(opt.state.values())}
    run.facts["checkpoint_gpu_bytes"] = sum(t.nbytes for t in tensors_in(checkpoint) if t.is_cuda)
    run.facts["doubled_bytes"] = held_twice(checkpoint, model.state_dict(), state)
    run.facts["shared_optimizer_bytes"] = run.facts["checkpoint_gpu_bytes"] - run.facts["doubled_bytes"]


def first_step(run, b: int, t: int) -> None:
    model = GPT(d=512, layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())
    loss_of(model, batch_of(b, t)).backward()
    run.owns(model, opt)
    run.step()
    if run.name == "first_step_to_come":
        run.finish()
    before = torch.cuda.memory_stats()
    opt.step()
    after = torch.cuda.memory_stats()
    for kind in ("requested_bytes", "allocated_bytes"):
        run.facts[f"first_step_keeps_{kind}"] = after[f"{kind}.all.current"] - before[f"{kind}.all.current"]
    run.facts["first_step_peak_requested_bytes"] = after["requested_bytes.all.peak"]
    run.facts["first_step_peak_reserved_bytes"] = after["reserved_bytes.all.peak"]
    run.step()


@program()
def first_step_to_come(run):
    """Forward and backward only: the recording ends before AdamW makes its state; the run goes on and measures it."""
    first_step(run, 4, 256)


@program(oom=True, variant="no limit")
def first_step_oom(run):
    """Fails in the forward pass of step 0: backward and the optimizer's first step, still to come, would need more."""
    if run.twin:
        run.cap(int(run.twin["steps"]["reserved_bytes"][0] * 0.8))
    first_step(run, 4, 256)


@program(oom=True, variant="no limit")
def optimizer_oom(run):
    """Fails inside the first optimizer.step(): forward and backward fit, the state does not."""
    if run.twin:
        run.cap(run.twin["steps"]["reserved_bytes"][0] + run.twin["facts"]["first_step_keeps_allocated_bytes"] // 2)
    first_step(run, 1, 64)


def conv_net():
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, padding=3),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 100),
    )


def conv_steps(run, count: int, size: int) -> None:
    torch.backends.cudnn.benchmark = not run.variant
    model = conv_net().cuda()
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(count):
        x = torch.randn(16, 3, size, size, device="cuda")
        y = torch.randint(0, 100, (16,), device="cuda")
        F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        run.step()
    run.end(model, opt)


@program(fixed="cudnn.benchmark = False")
def conv_workspace(run):
    """cudnn.benchmark tries algorithms in step 0: big workspaces that live for one call; reserved stays high."""
    conv_steps(run, 4, 160)


@program(variant="cudnn.benchmark = False, no limit")
def oom_cudnn(run):
    """Under a limit, cuDNN's trials of big workspaces fail, are caught, and the program lives (num_ooms > 0)."""
    if run.twin:
        run.cap(run.twin["stats"]["reserved_bytes.all.peak"] + 64 * MIB)
    conv_steps(run, 3, 160)


@program(variant="weights kept in bfloat16, no autocast")
def amp_casts(run):
    """Autocast over float32 weights: a bfloat16 copy of every Linear's weight lives through forward and backward."""
    model = GPT(d=512, layers=3).cuda()
    if run.variant:
        model.to(torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not run.variant):
            loss = loss_of(model, batch_of(8, 512))
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        run.step()
    linear = [p for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()]
    run.facts["cast_bytes"] = sum(2 * p.numel() for p in linear)
    run.end(model, opt)


@program(fixed="the prefetch on the default stream")
def stranded_stream(run):
    """A side stream prefetches 2 GiB in step 0 and is never used again: its cache serves nobody."""
    model = GPT(layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())
    side = torch.cuda.current_stream() if run.variant else torch.cuda.Stream()
    for i in range(4):
        if i == 0:
            before = torch.cuda.memory_reserved()
            with torch.cuda.stream(side):
                chunks = [torch.randn(64 << 20, device="cuda") for _ in range(8)]
                mean = sum(c.mean() for c in chunks)
            torch.cuda.current_stream().wait_stream(side)
            run.facts["prefetched_reserved_bytes"] = torch.cuda.memory_reserved() - before
            torch.cuda.synchronize()
            mean = mean.item()
            del chunks
        train_step(model, opt, 16, 512)
        run.step()
    run.end(model, opt)


@program()
def private_pools(run):
    """Three CUDA graphs with a pool each, a fourth sharing the first one's, and a MemPool half empty."""
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).cuda()
    x = torch.randn(512, 1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(2):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graphs, outputs = [], []
    run.facts["pools"] = []

    def pool_made(kind, pool, before):
        made = torch.cuda.memory_reserved() - before
        run.facts["pools"].append({"kind": kind, "id": list(pool), "reserved_bytes": made})

    for b in (64, 256, 512, 128):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=graphs[0].pool() if len(graphs) == 3 else None):
            y = model(x[:b]).relu()
        graphs.append(graph)
        outputs.append(y)
        pool_made("cuda_graph" if len(graphs) < 4 else "cuda_graph_shared", graph.pool(), before)
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")
        dropped = torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")
    pool_made("mem_pool", pool.id, before)
    del dropped
    for graph in graphs:
        graph.replay()
    for _ in range(3):
        (model(x).sum() + kept[0]).backward()
        model.zero_grad(set_to_none=True)
        run.step()
    run.finish()
    run.facts["mem_pool_free_bytes"] = 80 * MIB


@program(late=True)
def late_start(run):
    """The recording begins when the model, AdamW's state and two steps are past; four more steps follow."""
    model = GPT(layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train_step(model, opt, 8, 256)
    run.start()
    for _ in range(4):
        train_step(model, opt, 8, 256)
        run.step()
    run.end(model, opt)


def eight_steps(run) -> None:
    model = GPT(layers=3).cuda()
    opt = torch.optim.AdamW(model.parameters())
    for b in (4, 8, 24, 8, 12, 4, 16, 8):
        train_step(model, opt, b, 256)
        run.step()
    run.end(model, opt)


@program(max_entries=2000)
def wrapped(run):
    """The ring buffer holds the last 2000 events only: the run's true peak (step 2) is not among them."""
    eight_steps(run)


@program()
def wrapped_full(run):
    """The same run as `wrapped`, recorded whole."""
    eight_steps(run)


@program(stacks="all")
def cpp_stacks(run):
    """C++ frames beside the Python ones, backward included (stacks='all')."""
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(2):
        x = torch.randn(1024, 512, device="cuda")
        F.mse_loss(model(x), x).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        run.step()
    run.end(model, opt)


def compiled_steps(run, backend: str) -> None:
    model = GPT(d=128).cuda()
    compiled_model = torch.compile(model, backend=backend)
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        train_step(compiled_model, opt, 8, 256)
        run.step()
    run.end(model, opt)


@program(compile_context=True)
def compiled(run):
    """torch.compile with inductor: frames in generated code, compile contexts."""
    compiled_steps(run, "inductor")


@program(compile_context=True, fx=True)
def compiled_fx(run):
    """torch.compile with aot_eager, dumped with augment_with_fx_traces=True: frames carry fx_* fields."""
    compiled_steps(run, "aot_eager")


@program(context="all", global_record_annotations=True)
def metadata(run):
    """Regions (record_function) and user metadata on every allocation."""
    region = torch.profiler.record_function
    model = GPT().cuda()
    opt = torch.optim.AdamW(model.parameters())
    tag = getattr(torch.cuda.memory, "_set_memory_metadata", lambda text: None)
    for i in range(3):
        tag(f"step={i};part=data")
        with region("data"):
            ids = batch_of(8, 256)
        tag(f"step={i};part=forward")
        with region("forward"):
            out = model(ids)
        with region("loss"):
            loss = F.cross_entropy(out.view(-1, out.shape[-1]), ids.view(-1))
        tag(f"step={i};part=backward")
        with region("backward"):
            loss.backward()
        tag("")
        opt.step()
        opt.zero_grad(set_to_none=True)
        del out, loss
        run.step()
    run.end(model, opt)


@program(global_record_annotations=True)
def grad_accumulation(run):
    """Four micro-batches a step; the optimizer's marks are in the annotations."""
    run.facts["micro_batches"] = 4
    model = GPT().cuda()
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        for _ in range(4):
            (loss_of(model, batch_of(4, 256)) / 4).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        run.step()
    run.end(model, opt)


@program(variant="no checkpointing")
def checkpointing(run):
    """Each block is checkpointed (use_reentrant=False): it is computed again in the backward pass."""
    model = GPT(layers=4).cuda()
    model.checkpointed = not run.variant
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        train_step(model, opt, 8, 512)
        run.step()
    run.end(model, opt)


@program(fixed="keys and values written into a cache made once")
def inference_kv(run):
    """Decoding with a key-value cache that torch.cat makes anew for every token."""
    layers, b, h, d, prompt, tokens = 3, 8, 8, 64, 1024, 60
    wide = dict(device="cuda", dtype=torch.float16)
    with torch.no_grad():
        blocks = [nn.Linear(h * d, 3 * h * d, **wide) for _ in range(layers)]
        if run.variant:
            cache = [torch.zeros(2, b, h, prompt + tokens, d, **wide) for _ in range(layers)]
        else:
            keys = [torch.randn(b, h, prompt, d, **wide) for _ in range(layers)]
            values = [torch.randn(b, h, prompt, d, **wide) for _ in range(layers)]
        x = torch.randn(b, h * d, **wide)
        for i in range(tokens):
            for n, block in enumerate(blocks):
                q, k, v = block(x).view(b, 3, h, 1, d).unbind(1)
                if run.variant:
                    cache[n][0, :, :, prompt + i], cache[n][1, :, :, prompt + i] = k.squeeze(2), v.squeeze(2)
                    k, v = cache[n][:, :, :, : prompt + i + 1]
                else:
                    keys[n] = k = torch.cat([keys[n], k], dim=2)
                    values[n] = v = torch.cat([values[n], v], dim=2)
                x = F.scaled_dot_product_attention(q, k, v).reshape(b, h * d)
            run.step()
    run.finish()
    run.facts["cache_bytes"] = 2 * layers * b * h * (prompt + tokens) * d * 2
    run.facts["weight_bytes"] = sum(p.nbytes for m in blocks for p in m.parameters())


@program()
def gan(run):
    """Two models, two optimizers, taking turns: one step is both."""
    generator = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 4096), nn.Tanh()).cuda()
    critic = nn.Sequential(nn.Linear(4096, 1024), nn.LeakyReLU(), nn.Linear(1024, 1)).cuda()
    opt_g = torch.optim.Adam(generator.parameters(), 2e-4)
    opt_c = torch.optim.RMSprop(critic.parameters(), 2e-4)
    for _ in range(5):
        real = torch.randn(512, 4096, device="cuda")
        fake = generator(torch.randn(512, 128, device="cuda"))
        opt_c.zero_grad(set_to_none=True)
        F.softplus(critic(fake.detach()) - critic(real)).mean().backward()
        opt_c.step()
        opt_g.zero_grad(set_to_none=True)
        F.softplus(-critic(fake)).mean().backward()
        opt_g.step()
        run.step()
    run.end(nn.ModuleList([generator, critic]), opt_g, opt_c)


@program(oom=True, variant="no limit")
def spike_oom(run):
    """Five flat steps, then one batch four times as long fails: not the model, the batch."""
    if run.twin:
        run.cap(int(2.5 * max(run.twin["steps"]["reserved_bytes"][:5])))
    model = GPT().cuda()
    opt = torch.optim.AdamW(model.parameters())
    for t in (256, 256, 256, 256, 256, 1024):
        train_step(model, opt, 8, t)
        run.step()
    run.end(model, opt)


def growing(run) -> None:
    model = GPT(vocab=8192).cuda()
    opt = torch.optim.AdamW(model.parameters())
    for b in (8, 12, 16, 24, 32, 48, 64, 96, 128):
        run.facts["last_batch"] = b
        train_step(model, opt, b, 512)
        run.step()


@program(oom=True, late=True)
def capacity_oom_other_process(run):
    """Another process holds all but 3 GiB of the device; batches grow until the device is full."""
    torch.zeros(1, device="cuda")
    holder = subprocess.Popen(
        [sys.executable, sys.argv[0], "--hold", str(3 * GIB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        run.facts["other_process_bytes"] = int(holder.stdout.readline())
        torch.cuda.empty_cache()
        run.facts["free_at_start_bytes"] = torch.cuda.mem_get_info()[0]
        run.start()
        growing(run)
    finally:
        holder.stdin.close()
        holder.wait()


@program(oom=True)
def capacity_oom_device(run):
    """This process fills the device itself: features kept on the GPU, then batches grow until it is full."""
    count = (torch.cuda.mem_get_info()[0] - 3 * GIB) // (2 * GIB)
    features = [torch.empty(2 * GIB, dtype=torch.uint8, device="cuda") for _ in range(count)]
    run.facts["features_bytes"] = sum(f.nbytes for f in features)
    run.facts["free_at_start_bytes"] = torch.cuda.mem_get_info()[0]
    growing(run)


def hold(leave_bytes: int) -> None:
    """The other process: takes all of the device but `leave_bytes`, says how much, waits for its input to close."""
    torch.zeros(1, device="cuda")
    size = (torch.cuda.mem_get_info()[0] - leave_bytes) // (2 * MIB) * (2 * MIB)
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    print(block.nbytes, flush=True)
    sys.stdin.read()


@program()
def oom_recovered(run):
    """A batch too large fails, is caught and halved until it fits; training goes on: failures recorded, nobody died."""
    run.cap(1200 * MIB)
    model = GPT().cuda()
    opt = torch.optim.AdamW(model.parameters())
    b, done, tried = 64, 0, []
    while done < 4:
        failed = False
        tried.append(b)
        try:
            train_step(model, opt, b, 512)
        except torch.OutOfMemoryError as error:
            run.facts.setdefault("messages", []).append(str(error))
            failed = True
        if failed:
            opt.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            b //= 2
        else:
            done += 1
            run.step()
    run.facts["batches"] = tried
    run.end(model, opt)


@program(oom=True, max_entries=1500)
def oom_wrapped(run):
    """Batches grow to the limit, and the ring buffer holds the last 1500 events only."""
    run.cap(3 * GIB)
    growing(run)


@program(oom=True)
def oom_expandable(run):
    """Fails although expandable_segments:True is in effect: it is not fragmentation."""
    run.cap(1024 * MIB)
    growing(run)


@program(oom=True, variant="expandable_segments:True under the same limit")
def oom_holes(run):
    """Fails for want of one piece: kept buffers lie in every segment; under expandable_segments the same run lives."""
    run.cap(2048 * MIB, twin=True)

    def buffer(mib: int):
        return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

    large = [buffer(256) for _ in range(7)]
    del large
    parts = [buffer(64) for _ in range(28)]
    kept = parts[::4]
    del parts
    run.facts["kept_bytes"] = sum(k.nbytes for k in kept)
    buffer(600)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--list"]:
        print("\n".join(PROGRAMS))
    elif arguments[:1] == ["--hold"]:
        hold(int(arguments[1]))
    else:
        out = Path(arguments[1])
        out.mkdir(parents=True, exist_ok=True)
        Run(arguments[0], out, "--variant" in arguments[2:]).main()


main()
