"""Ranks of jobs that never ran: real recordings of many kinds, each with one known cause of
difference put into it.

A base is a real recording with room made between its blocks, so that any of them may become larger.
A rank is a base with jitter in it (sizes, order), and one of the causes below in a size that is a
share of the base's peak.
"""

from __future__ import annotations

import lzma
import pickle
import random
import zipfile
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

from support.recordings import DATA, read
from vramlens.ranks import RankSummary, summarise
from vramlens.units import MIB

BASES = (
    "recordings/gpt.pickle.xz", "recordings/resnet50.pickle.xz", "recordings/gpt_annotated.pickle.xz",
    "recordings/leak_none_warmup.pickle.xz", "recordings/cnn_multires.pickle.xz", "recordings/gpt_varlen.pickle.xz",
    "ranks/ddp/ddp.rank0.pickle.xz", "ranks/leak_rank1/leak_rank1.rank0.pickle.xz", "captured/checkpointed.vram",
    "captured/fsdp2-rank0.vram", "captured/lightning.vram", "found/amp_casts.pickle.xz",
    "found/grad_accumulation.pickle.xz", "found/compiled.pickle.xz", "found/eval_graph_fixed.pickle.xz",
    "found/grads_zeroed.pickle.xz", "found/checkpointing.pickle.xz",
)  # fmt: skip
"""Training runs of two steps and more that end well, of 2,700 to 64,000 events."""
ROOM = 4
"""How far blocks are moved apart: so many times they may grow."""
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
Event = dict[str, Any]
Frames = list[dict[str, Any]]


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


MAIN = [frame("train/job.py", 90, "main"), frame("train/job.py", 99, "<module>")]


class Base:
    """A recording to make ranks of.

    Attributes:
        births: by event of an allocation, the event of its free_completed (the number of events if
            it stays).
        moving: events of allocations whose size follows the batch: born and gone within training,
            no gradients.
        staying: events of allocations of parameters, gradients and optimizer state.
        step_times: when the steps began and the last one ended, in microseconds.
    """

    def __init__(self, name: str, least_events: int = 0) -> None:
        path = DATA / name
        if path.suffix == ".vram":
            with zipfile.ZipFile(path) as archive:
                data = archive.read("snapshot.pickle")
        else:
            data = lzma.decompress(path.read_bytes())
        self.name, self.snapshot = name, pickle.loads(data)
        device = max(
            range(len(self.snapshot["device_traces"])),
            key=lambda i: len(self.snapshot["device_traces"][i]),
        )
        self.device = device
        self.events: list[Event] = [dict(event) for event in self.snapshot["device_traces"][device]]
        self.notes: list[Event] = list(self.snapshot["external_annotations"])
        self._lengthen(least_events)
        ends = sorted(
            n["time_us"]
            for n in self.notes
            if n["name"].startswith("Optimizer.step#") and n["stage"] == "END"
        )
        first = next(
            (
                e["time_us"]
                for e in self.events
                if any(f["name"] in ("forward", "_call_impl") for f in e["frames"])
            ),
            ends[0] - (ends[-1] - ends[0]) // len(ends),
        )
        self.step_times = [first, *ends]
        self._spread()
        self._classify()

    def _lengthen(self, least: int) -> None:
        """Repeats a steady step until there are so many events; not where every step leaves
        something else behind.
        """
        ends = sorted(
            n["time_us"]
            for n in self.notes
            if n["name"].startswith("Optimizer.step#") and n["stage"] == "END"
        )
        if len(self.events) >= least or len(ends) < 3:
            return
        cuts = [bisect_left(self.events, end, key=lambda e: e["time_us"]) for end in ends]
        live: dict[int, int] = {}
        states = []
        for at, event in enumerate(self.events):
            if at in cuts:
                states.append(tuple(sorted(live.items())))
            if event["action"] == "alloc":
                live[event["addr"]] = event["size"]
            elif event["action"] == "free_completed":
                live.pop(event["addr"], None)
        same = next((i for i in range(len(states) - 1, 0, -1) if states[i] == states[i - 1]), None)
        if same is None:
            return
        begin, end = cuts[same - 1], cuts[same]
        body, span = self.events[begin:end], ends[same] - ends[same - 1]
        if any(event["action"].startswith("segment") for event in body):
            body = [event for event in body if not event["action"].startswith("segment")]
        times = max(0, -(-(least - len(self.events)) // max(1, len(body))))
        more = [
            {**event, "time_us": event["time_us"] + span * (i + 1)}
            for i in range(times)
            for event in body
        ]
        shift = span * times
        tail = [{**event, "time_us": event["time_us"] + shift} for event in self.events[end:]]
        self.events = [*self.events[:end], *more, *tail]
        inside = [n for n in self.notes if ends[same - 1] < n["time_us"] <= ends[same]]
        after = [
            {**n, "time_us": n["time_us"] + shift} for n in self.notes if n["time_us"] > ends[same]
        ]
        before = [n for n in self.notes if n["time_us"] <= ends[same]]
        copies = [
            {**n, "time_us": n["time_us"] + span * (i + 1)} for i in range(times) for n in inside
        ]
        self.notes = [*before, *copies, *after]

    def _spread(self) -> None:
        low = min(event["addr"] for event in self.events if event["addr"])
        for event in self.events:
            if event["addr"]:
                event["addr"] = low + (event["addr"] - low) * ROOM
            if event["action"].startswith("segment"):
                event["size"] *= ROOM
        self.segments = []
        for segment in self.snapshot["segments"]:
            moved = {**segment, "address": low + (segment["address"] - low) * ROOM, "blocks": []}
            moved["total_size"] *= ROOM
            at = moved["address"]
            for block in segment["blocks"]:
                moved["blocks"].append({**block, "address": at, "size": block["size"] * ROOM})
                at += block["size"] * ROOM
            self.segments.append(moved)

    def _classify(self) -> None:
        births: dict[int, int] = {}
        open_: dict[int, int] = {}
        for at, event in enumerate(self.events):
            if event["action"] == "alloc":
                births[at], open_[event["addr"]] = len(self.events), at
            elif event["action"] == "free_completed" and event["addr"] in open_:
                births[open_.pop(event["addr"])] = at
        self.births = births
        start = bisect_left(self.events, self.step_times[0], key=lambda e: e["time_us"])
        parameters = {
            self.events[at]["size"]
            for at, end in births.items()
            if at < start and end == len(self.events)
        }
        last = bisect_left(self.events, self.step_times[-1] - 1, key=lambda e: e["time_us"])
        self.staying = {
            at for at, end in births.items()
            if (at < start and end >= last) or (self.events[at]["size"] in parameters
            and (not self.events[at]["frames"] or any("optim" in f["filename"] for f in self.events[at]["frames"])))
        }  # fmt: skip
        self.moving = {
            at for at, end in births.items()
            if at >= start and end < len(self.events) and self.events[at]["size"] not in parameters
            and at not in self.staying and self.events[at]["size"] >= 4096
        }  # fmt: skip
        held = peak = 0
        self.at_peak, sizes = 0, {end: at for at, end in births.items()}
        for at, event in enumerate(self.events):
            if at in births:
                held += event["size"]
                if held > peak:
                    peak, self.at_peak = held, at
            elif at in sizes:
                held -= self.events[sizes[at]]["size"]
        self.peak = peak

    def held(self, chosen: set[int]) -> int:
        """Bytes of some allocations that are alive at the peak."""
        return sum(self.events[at]["size"] for at in chosen if at <= self.at_peak < self.births[at])

    def parameter_events(self) -> list[Event]:
        """The allocations of parameters, one a tensor."""
        start = self.step_times[0]
        return [
            self.events[at] for at in sorted(self.staying)
            if self.events[at]["time_us"] < start and self.events[at]["frames"] and self.events[at]["size"] > 65536
        ]  # fmt: skip


@cache
def base_of(name: str, least_events: int = 0) -> Base:
    return Base(name, least_events)


class Rank:
    """One rank's snapshot, to be changed.

    Attributes:
        world, rank: of the job.
        facts: fields of the summary that a driver would have told.
    """

    def __init__(self, base: Base, seed: int = 0, world: int = 8, marks: bool = True) -> None:
        self.base, self.chance, self.world, self.marks = (
            base,
            random.Random(f"{base.name} {seed}"),
            world,
            marks,
        )
        self.factors: dict[int, float] = {}
        self._added: list[tuple[int, int, Event]] = []
        self.segments: list[dict[str, Any]] = []
        self._next = 0x7E0000000000
        self.other: list[Event] = []
        self.facts: dict[str, Any] = {}

    def jitter(self, share: float = 0.01) -> None:
        """Sizes of what follows the batch differ by so much from rank to rank, and some
        short-lived ones in order.
        """
        self.scale(self.base.moving, 1 + self.chance.uniform(-share, share))

    def scale(self, chosen: set[int], factor: float) -> None:
        for at in chosen:
            self.factors[at] = self.factors.get(at, 1.0) * factor

    def put(
        self,
        time_us: int,
        size: int,
        frames: Frames,
        until_us: int | None = None,
        *,
        device: int = 0,
    ) -> None:
        """An allocation in a segment of its own."""
        size = max(512, size // 512 * 512)
        whole = -(-size // (2 * MIB)) * 2 * MIB
        address, self._next = self._next, self._next + whole + 2 * MIB
        one = {
            "addr": address,
            "stream": 0,
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": frames,
        }

        def add(time: int, action: str, bytes_: int, **more: Any) -> None:
            event = {**one, "action": action, "size": bytes_, "time_us": time, **more}
            if device:
                self.other.append(event)
            else:
                self._added.append((time, len(self._added), event))

        add(time_us, "segment_alloc", whole)
        add(time_us, "alloc", size)
        if until_us is not None:
            for action, bytes_ in (
                ("free_requested", size),
                ("free_completed", size),
                ("segment_free", whole),
            ):
                add(until_us, action, bytes_, frames=[])
            return
        block = {
            "address": address,
            "size": whole,
            "requested_size": size,
            "state": "active_allocated",
            "frames": frames,
        }
        self.segments.append(
            {
                "device": device or self.base.device, "address": address, "total_size": whole, "allocated_size": whole,
                "active_size": whole, "requested_size": size, "stream": 0, "segment_type": "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames, "blocks": [block],
            }
        )  # fmt: skip

    def steps(self) -> list[tuple[int, int]]:
        """Each step from its first to its last microsecond."""
        times = self.base.step_times
        return [(a + 1, b - 1) for a, b in pairwise(times)]

    def in_each_step(self, size: int, frames: Frames, parts: int = 1) -> None:
        for start, end in self.steps():
            for _ in range(parts):
                self.put(start, size // parts, frames, until_us=end)

    @property
    def before(self) -> int:
        """Just before the first step."""
        return self.base.step_times[0] - 1

    def data(self) -> bytes:
        base, sizes, events = self.base, {}, []
        for at, event in enumerate(base.events):
            if at in base.births:
                size = max(1, int(event["size"] * self.factors.get(at, 1.0)))
                sizes[event["addr"]] = size
            elif event["action"] in ("free_requested", "free_completed") and event["addr"] in sizes:
                size = sizes[event["addr"]]
            else:
                events.append(event)
                continue
            events.append({**event, "size": size} if size != event["size"] else event)
        segments = []
        for segment in base.segments:
            blocks = [
                {**b, "requested_size": sizes[b["address"]]}
                if b["address"] in sizes and b["state"] != "inactive"
                else b
                for b in segment["blocks"]
            ]
            segments.append({**segment, "blocks": blocks})
        for at in range(len(events) - 1):
            # Two threads: what one frees a moment before the other allocates may come a moment
            #     after.
            first, second = events[at], events[at + 1]
            if (
                first["action"] == "free_requested" and second["action"] == "alloc" and first["addr"] != second["addr"]
                and self.chance.random() < 0.02
            ):  # fmt: skip
                events[at], events[at + 1] = (
                    {**second, "time_us": first["time_us"]},
                    {**first, "time_us": second["time_us"]},
                )
        added = [event for _, _, event in sorted(self._added, key=lambda each: each[:2])]
        merged = sorted([*events, *added], key=lambda event: event["time_us"])
        traces: list[list[Event]] = [
            [] for _ in range(max(base.device, 1 if self.other else 0) + 1)
        ]
        traces[base.device] = merged
        if self.other:
            traces[1 - base.device] = self.other
        notes = base.notes if self.marks else []
        snapshot = {
            **base.snapshot,
            "device_traces": traces,
            "segments": [*segments, *self.segments],
        }
        return pickle.dumps({**snapshot, "external_annotations": notes}, 4)

    def summary(self, rank: int = 0) -> RankSummary:
        return replace(summarise(read(self.data()), rank), world_size=self.world, **self.facts)


# One function a cause: what it puts into a rank's run, raising the peak by so many bytes.


def leak(rank: Rank, size: int) -> None:
    steps = rank.steps()
    for start, _ in steps:
        rank.put(start, size // len(steps), [frame("train/metrics.py", 31, "update"), *MAIN])


def gather_list(rank: Rank, size: int) -> None:
    """The list that a gather fills: one tensor a rank."""
    rank.in_each_step(size, [frame("train/evaluate.py", 52, "collect"), *MAIN], parts=rank.world)


def gather_metrics(rank: Rank, size: int) -> None:
    frames = [frame("/env/site-packages/accelerate/utils/operations.py", 380, "_gpu_gather"),
              frame("/env/site-packages/accelerate/accelerator.py", 2400, "gather_for_metrics"),
              frame("train/evaluate.py", 52, "collect"), *MAIN]  # fmt: skip
    rank.in_each_step(size, frames)


def gather_kept(rank: Rank, size: int) -> None:
    frames = [frame(f"{TORCH}/distributed/distributed_c10d.py", 3900, "all_gather"),
              frame("train/evaluate.py", 52, "collect"), *MAIN]  # fmt: skip
    steps = rank.steps()
    for start, _ in steps:
        rank.put(start, size // len(steps), frames)


def object_collective(rank: Rank, size: int) -> None:
    frames = [frame(f"{TORCH}/distributed/distributed_c10d.py", 2900, "_object_to_tensor"),
              frame(f"{TORCH}/distributed/distributed_c10d.py", 3100, "gather_object"),
              frame("train/evaluate.py", 71, "gather_results"), *MAIN]  # fmt: skip
    rank.in_each_step(size, frames)


LOADING = [frame(f"{TORCH}/serialization.py", 1600, "restore_location"),
           frame(f"{TORCH}/serialization.py", 1400, "load"), frame("train/job.py", 40, "resume"), *MAIN]  # fmt: skip


def map_location(rank: Rank, size: int) -> None:
    rank.put(rank.before, size, LOADING, device=1)


def load_kept(rank: Rank, size: int) -> None:
    """A checkpoint that stays on this rank's GPU."""
    rank.put(rank.before, size, LOADING)


def full_state_dict(rank: Rank, size: int) -> None:
    frames = [frame(f"{TORCH}/distributed/_state_dict_utils.py", 200, "_gather_state_dict"),
              frame(f"{TORCH}/distributed/checkpoint/state_dict.py", 900, "get_model_state_dict"),
              frame("train/job.py", 61, "save"), *MAIN]  # fmt: skip
    rank.in_each_step(size, frames, parts=12)


def uneven_batch(rank: Rank, size: int) -> None:
    held = rank.base.held(rank.base.moving)
    factor = 1 + size / max(held, 1)
    if factor > ROOM - 0.2 or held < 0.1 * rank.base.peak:
        raise NotPossible
    rank.scale(rank.base.moving, factor)


def uneven_shard(rank: Rank, size: int) -> None:
    factor = 1 + size / max(rank.base.held(rank.base.staying), 1)
    if factor > 1.2:
        raise NotPossible
    rank.scale(rank.base.staying, factor)


def pipeline_stage(rank: Rank, size: int) -> None:
    """More layers: parameters of the lines that make them, and activations of the same lines in
    every step.
    """
    parameters = rank.base.parameter_events()
    if not parameters:
        raise NotPossible
    left = size // 2
    while left > 0:
        for event in parameters:
            rank.put(event["time_us"], event["size"], event["frames"])
            left -= event["size"]
            if left <= 0:
                break
    lines = [
        rank.base.events[at]
        for at in sorted(rank.base.moving)
        if at <= rank.base.at_peak < rank.base.births[at]
    ]
    for event in lines[:1]:
        rank.in_each_step(size // 2, event["frames"], parts=4)


def first_last_stage(rank: Rank, size: int) -> None:
    frames = [
        frame(f"{TORCH}/nn/functional.py", 3400, "cross_entropy"),
        frame("train/loss.py", 88, "token_loss"),
        *MAIN,
    ]
    rank.in_each_step(size, frames)


def embedding_shard(rank: Rank, size: int) -> None:
    frames = [
        frame(f"{TORCH}/nn/modules/sparse.py", 170, "__init__"),
        frame("train/tables.py", 12, "build"),
        *MAIN,
    ]
    rank.put(rank.before - 1, size, frames)


MOE = [
    frame("train/moe.py", 77, "forward"),
    frame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl"),
    *MAIN,
]


def moe_usual(rank: Rank) -> None:
    rank.in_each_step(rank.base.peak // 20, MOE)


def moe_hot_rank(rank: Rank, size: int) -> None:
    rank.in_each_step(rank.base.peak // 20 + size, MOE)


def allocator(rank: Rank, size: int) -> None:
    """Segments that small blocks keep alive."""
    rank.put(rank.steps()[0][0], 128 * 1024, MAIN)
    segment = rank.segments[-1]
    whole = int((size + 0.25 * rank.base.peak) * ROOM) // (2 * MIB) * 2 * MIB + 128 * MIB
    segment["total_size"] = whole
    used = segment["blocks"][0]["size"]
    segment["blocks"].append(
        {
            "address": segment["address"] + used,
            "size": whole - used,
            "requested_size": 0,
            "state": "inactive",
        }
    )
    rank._next += whole
    for _, _, event in rank._added:
        if event["addr"] == segment["address"] and event["action"] == "segment_alloc":
            event["size"] = whole


def rank_only(rank: Rank, size: int) -> None:
    for _ in range(10):
        rank.put(rank.before, size // 10, [frame("train/ema.py", 18, "copy_weights"), *MAIN])


def rank_only_steps(rank: Rank, size: int) -> None:
    """Samples that one rank draws in each step."""
    rank.in_each_step(size, [frame("train/plots.py", 9, "draw"), *MAIN])


def stray_context(rank: Rank, size: int) -> None:
    rank.put(rank.before, size, [frame("train/job.py", 21, "warm_up"), *MAIN], device=1)


def data_parallel(rank: Rank, size: int) -> None:
    frames = [frame(f"{TORCH}/nn/parallel/comm.py", 230, "gather"),
              frame(f"{TORCH}/nn/parallel/scatter_gather.py", 100, "gather"),
              frame(f"{TORCH}/nn/parallel/data_parallel.py", 200, "forward"), frame("train/job.py", 70, "step"),
              *MAIN]  # fmt: skip
    rank.in_each_step(size, frames)


LEDGER = {
    "pytorch_allocated": 2_000 * MIB,
    "nccl": 400 * MIB,
    "this_process_other": 600 * MIB,
    "free": 40_000 * MIB,
}


def nccl(rank: Rank, size: int) -> None:
    rank.facts["ledger"] = tuple((LEDGER | {"nccl": 400 * MIB + max(size, 80 * MIB)}).items())


def other_process(rank: Rank, size: int) -> None:
    rank.facts["ledger"] = tuple((LEDGER | {"other_processes": max(size, 80 * MIB)}).items())


_BY_LEDGER = ("nccl", "other_process")


class NotPossible(Exception):
    """This base has no room for this cause in this size."""


Cause = Callable[[Rank, int], None]
CAUSES: dict[str, tuple[Cause, str, tuple[str, int] | None, str]] = {
    "leak": (leak, "leak", ("train/metrics.py", 31), "any"),
    "gather_list": (gather_list, "rank0_gather", ("train/evaluate.py", 52), "first"),
    "gather_metrics": (gather_metrics, "rank0_gather", ("train/evaluate.py", 52), "any"),
    "gather_kept": (gather_kept, "rank0_gather", ("train/evaluate.py", 52), "first"),
    "object_collective": (object_collective, "object_collective", ("train/evaluate.py", 71), "any"),
    "map_location": (map_location, "map_location", ("train/job.py", 40), "any"),
    "load_kept": (load_kept, "map_location", ("train/job.py", 40), "any"),
    "full_state_dict": (full_state_dict, "full_state_dict", ("train/job.py", 61), "first"),
    "uneven_batch": (uneven_batch, "uneven_batch", None, "any"),
    "uneven_shard": (uneven_shard, "uneven_shard", None, "any"),
    "pipeline_stage": (pipeline_stage, "pipeline_stage", None, "any"),
    "first_last_stage": (first_last_stage, "first_last_stage", ("train/loss.py", 88), "last"),
    "embedding_shard": (embedding_shard, "embedding_shard", ("train/tables.py", 12), "any"),
    "moe_hot_rank": (moe_hot_rank, "moe_hot_rank", ("train/moe.py", 77), "any"),
    "allocator": (allocator, "allocator", None, "any"),
    "rank_only": (rank_only, "rank_only", ("train/ema.py", 18), "any"),
    "rank_only_steps": (rank_only_steps, "rank_only", ("train/plots.py", 9), "any"),
    "stray_context": (stray_context, "stray_context", ("train/job.py", 21), "any"),
    "data_parallel": (data_parallel, "data_parallel", ("train/job.py", 70), "first"),
    "nccl": (nccl, "nccl", None, "any"),
    "other_process": (other_process, "other_process", None, "any"),
}
"""By name: what plants it, the cause to be named, its line, and which rank may have it."""


def job(
    base: Base, name: str, share: float, world: int, seed: int, *, marks: bool = True
) -> tuple[list[RankSummary], int]:
    """The ranks of a job in which one has a cause; and which one.

    Raises:
        NotPossible: not with this base.
    """
    chance = random.Random(f"{base.name} {name} {share} {world} {seed}")
    odd = where(name, world, chance.randrange(world))
    one = planted(base, name, share, world, seed + 1000, marks)
    return [
        replace(
            one if number == odd else chance.choice(usual(base, name, seed % 3, marks)),
            rank=number,
            world_size=world,
        )
        for number in range(world)
    ], odd


def where(name: str, world: int, anywhere: int) -> int:
    """The rank that may have a cause."""
    return {"first": 0, "last": world - 1, "any": anywhere}[CAUSES[name][3]]


@cache
def planted(
    base: Base, name: str, share: float, world: int = 8, seed: int = 0, marks: bool = True
) -> RankSummary:
    """A rank with a cause that raises its peak by a share of it.

    Raises:
        NotPossible: not with this base.
    """
    rank = Rank(base, seed, world, marks)
    rank.jitter()
    if name in _BY_LEDGER:
        rank.facts["ledger"] = tuple(LEDGER.items())
    CAUSES[name][0](rank, int(share * base.peak))
    return rank.summary()


def usual(base: Base, name: str = "", seed: int = 0, marks: bool = True) -> tuple[RankSummary, ...]:
    """Some ranks of a job in which another one has this cause."""
    ranks = _usual(base, "moe" if name == "moe_hot_rank" else "", seed, marks)
    return (
        tuple(replace(one, ledger=tuple(LEDGER.items())) for one in ranks)
        if name in _BY_LEDGER
        else ranks
    )


@cache
def _usual(base: Base, kind: str, seed: int, marks: bool) -> tuple[RankSummary, ...]:
    """Some ranks without a cause."""
    found = []
    for number in range(4):
        rank = Rank(base, seed * 10 + number, marks=marks)
        rank.jitter()
        if kind == "moe":
            moe_usual(rank)
        found.append(rank.summary())
    return tuple(found)


# Clean jobs


def clean_same(base: Base, world: int, seed: int) -> list[RankSummary]:
    """Data parallel, batches of equal size."""
    chance = random.Random(seed)
    usual = _usual(base, "", seed % 3, seed % 2 == 0)
    return [replace(chance.choice(usual), rank=number, world_size=world) for number in range(world)]


def clean_lengths(base: Base, world: int, seed: int) -> list[RankSummary]:
    """Data parallel, each rank with sequence lengths of its own in each step."""
    found = []
    for number in range(world):
        rank = Rank(base, seed * 1000 + number, world, marks=seed % 2 == 0)
        times = base.step_times
        factors = [rank.chance.uniform(0.4, 1.0) for _ in range(len(times) + 1)]
        for at in base.moving:
            rank.factors[at] = factors[bisect_left(times, base.events[at]["time_us"])]
        found.append(rank.summary(number))
    return found


def clean_shards(base: Base, world: int, seed: int) -> list[RankSummary]:
    """Sharded parameters: the first dimension does not divide, so that the last ranks hold less."""
    rows = random.Random(seed).randrange(100, 1000) * world + random.Random(seed).randrange(world)
    most = -(-rows // world)
    found = []
    for number in range(world):
        mine = min(most, max(0, rows - number * most))
        rank = Rank(base, number, world)
        rank.jitter(0.005)
        rank.scale(base.staying, mine / most)
        found.append(rank.summary(number))
    return found


def clean_pipeline(base: Base, world: int, seed: int) -> list[RankSummary]:
    """Stages of as many layers; the first has the embedding and more microbatches in flight, the
    last the head.
    """
    sends = [frame(f"{TORCH}/distributed/distributed_c10d.py", 2100, "batch_isend_irecv"),
             frame("train/pipeline.py", 40, "exchange"), *MAIN]  # fmt: skip
    head = [frame("train/model.py", 300, "head"), *MAIN]
    held = [base.events[at] for at in sorted(base.moving) if at <= base.at_peak < base.births[at]]
    found = []
    for number in range(world):
        rank = Rank(base, number, world)
        rank.jitter(0.005)
        rank.in_each_step(base.peak // 100, sends)
        # As many microbatches more in flight as there are stages to come: whole allocations of
        # theirs.
        waiting = base.peak * (world - number) // world // 10
        while held and waiting > 0:
            event = held[rank.chance.randrange(len(held))]
            rank.in_each_step(event["size"], event["frames"])
            waiting -= max(event["size"], base.peak // 400)
        if number in (0, world - 1):
            rank.put(
                rank.before - 1,
                base.peak // 20,
                [frame(f"{TORCH}/nn/modules/sparse.py", 170, "__init__"), *head],
            )
        found.append(rank.summary(number))
    return found


CLEAN = {
    "same": clean_same, "lengths": clean_lengths, "shards": clean_shards, "pipeline": clean_pipeline,
}  # fmt: skip
"""Kinds of jobs of which nothing is worth acting on."""
