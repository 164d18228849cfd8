"""Jobs of simulated ranks, as files: recordings of vramlens or snapshots of PyTorch, and the truth
about them.

What is planted is a habit of the simulated program (``simulated_training``); nothing here knows how
``ranks`` finds it. ``rank_faults`` says what is planted.
"""

from __future__ import annotations

import json
import pickle
import random
import statistics
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.simulated_gpu import GIB, MIB, Block, Line, OutOfMemory, SimulatedGpu
from support.simulated_training import (
    EVALUATION,
    LOOP,
    MAIN,
    START_US,
    TORCH,
    Habit,
    Model,
    Operation,
    SimulatedRank,
    frame,
    random_model,
)

WORLDS = (2, 2, 3, 4, 4, 8, 8, 16, 32, 64)
TOTAL = 80 * GIB
SETTINGS: dict[str, Any] = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "roundup_power2_divisions": {},
}
METRICS = (frame("train/metrics.py", 31, "update"), *LOOP)
EMA = (frame("train/ema.py", 18, "copy_weights"), *MAIN)
GATHER = (
    frame(f"{TORCH}/distributed/distributed_c10d.py", 3900, "all_gather"),
    frame("train/evaluate.py", 52, "collect"),
    *LOOP,
)
GATHER_LIST = (frame("train/evaluate.py", 52, "collect"), *LOOP)
PREDICTIONS = (frame("train/evaluate.py", 35, "evaluate"), *EVALUATION[1:])
PREVIEW = (frame("train/preview.py", 44, "decode"), *LOOP)
PREFETCH = (frame("train/data.py", 80, "prefetch"), *LOOP)
LOGGING = (frame("train/log.py", 12, "remember"), *LOOP)


# Habits


@dataclass
class KeepsTensors(Habit):
    """A list that grows by one tensor a step."""

    size: int
    line = ("train/metrics.py", 31)

    def step_done(self, rank: SimulatedRank, step: int) -> None:
        rank.keep(self.size // rank.model.steps, METRICS)


@dataclass
class KeepsActivations(Habit):
    """A forward hook stores a block's output in each step."""

    size: int

    def forward_done(self, rank: SimulatedRank, step: int) -> None:
        share = self.size // rank.model.steps
        for block in rank.activations[:-1]:
            if share <= 0:
                return
            rank.kept.append(block)
            share -= block.requested


@dataclass
class GathersMetrics(Habit):
    """One tensor of each rank in each step; kept to the end, or until the step after."""

    size: int
    world: int
    kept: bool
    in_stack: bool
    last: list[Block] | None = None

    def forward_done(self, rank: SimulatedRank, step: int) -> None:
        if not self.kept and self.last:
            rank.drop(self.last)
        part = self.size // self.world // (rank.model.steps if self.kept else 1)
        stack = GATHER if self.in_stack else GATHER_LIST
        self.last = [rank.gpu.alloc(part, stack) for _ in range(self.world)]


@dataclass
class Evaluates(Habit):
    """An evaluation after training whose predictions are kept to its end."""

    size: int
    batches: int = 4

    def end(self, rank: SimulatedRank) -> None:
        room = rank.gpu.peak_requested - rank.gpu.requested
        part = (room + self.size) // self.batches
        predictions = []
        for _ in range(self.batches):
            blocks = rank.forward(0, "evaluation", 0.5)
            rank.drop(blocks)
            predictions.append(rank.gpu.alloc(part, PREDICTIONS))
        rank.drop(predictions)


@dataclass
class Validates(Habit):
    """A validation after some steps that keeps activations as for a backward pass; the lines that
    hold them are the model's.
    """

    scale: float
    every: int = 3

    def step_done(self, rank: SimulatedRank, step: int) -> None:
        if step % self.every == self.every - 1:
            rank.drop(rank.forward(step, "validation", self.scale))


@dataclass
class Fragments(Habit):
    """A buffer that passes in each step, and is larger than all that is cached."""

    most: int = 3

    def step_done(self, rank: SimulatedRank, step: int) -> None:
        if step < self.most:
            rank.gpu.free(rank.gpu.alloc(rank.gpu.largest_segment + 2 * MIB, PREVIEW))


@dataclass
class LongerSequences(Habit):
    times: float

    def factor(self, operation: Operation, step: int) -> float:
        return self.times


@dataclass
class MoreTokens(Habit):
    """Experts that get more tokens than others; each step another share of it."""

    times: float

    def factor(self, operation: Operation, step: int) -> float:
        return self.times if operation.expert else 1.0


@dataclass
class CopiesWeights(Habit):
    size: int

    def begin(self, rank: SimulatedRank) -> None:
        for _ in range(8):
            rank.keep(self.size // 8, EMA)


@dataclass
class Prefetches(Habit):
    """Batches of the loader, where memory is low; sizes that never fit again fragment."""

    size: int
    growing: bool

    def step_done(self, rank: SimulatedRank, step: int) -> None:
        more = (step - rank.model.steps // 2) * 2 * MIB if self.growing else 0
        pieces = []
        for number in range(4):
            pieces.append(rank.gpu.alloc(max(MIB, self.size // 4 + more), PREFETCH))
            if self.growing:
                rank.keep(LOGGED_BYTES * (number + 1), LOGGING)
        rank.drop(pieces)


LOGGED_BYTES = 2048


@dataclass
class Logs(Habit):
    """Some numbers more of each step: kilobytes."""

    def step_done(self, rank: SimulatedRank, step: int) -> None:
        for _ in range(3):
            rank.keep(LOGGED_BYTES, LOGGING)


# Jobs


@dataclass(frozen=True)
class Expected:
    """What must be told.

    Attributes:
        causes: slugs of which one is right.
        lines: of which one is right, where a line is told; empty where any is.
    """

    ranks: tuple[int, ...]
    causes: tuple[str, ...]
    lines: tuple[Line, ...] = ()


@dataclass
class MadeJob:
    """A job in a folder, and the truth about it.

    Attributes:
        differences: all that differs.
        shared: lines of which one must be told as what all ranks share; empty where nothing is.
        first_failed: the rank that failed first; None where none did.
        host: named in the evidence; None where not asked.
        log: a file for ``explain`` instead of recordings.
        runs: the simulated ranks, by number.
    """

    kind: str
    world: int
    folder: Path
    differences: tuple[Expected, ...] = ()
    shared: tuple[Line, ...] = ()
    first_failed: int | None = None
    host: str | None = None
    log: Path | None = None
    runs: dict[int, SimulatedGpu] | None = None

    def excess(self, rank: int, line: Line) -> int:
        """How much more a rank holds at a line than the usual other rank: at its peak, or at its
        end, whichever is more.
        """
        runs = self.runs or {}
        others = [gpu for other, gpu in runs.items() if other != rank]
        at_peak = [gpu.bytes_at_peak(line) for gpu in others]
        at_end = [gpu.bytes_at_end(line) for gpu in others]
        return max(
            runs[rank].bytes_at_peak(line) - statistics.median_low(at_peak),
            runs[rank].bytes_at_end(line) - statistics.median_low(at_end),
        )

    def reserves_more(self, rank: int) -> int:
        """How much more than the usual other rank a rank reserves beyond what it requests."""
        gaps = {
            number: gpu.peak_reserved - gpu.peak_requested
            for number, gpu in (self.runs or {}).items()
        }
        return gaps.pop(rank) - statistics.median_low(gaps.values())


@dataclass
class Factory:
    """Makes the ranks of one job.

    Attributes:
        vram: whether they are recordings of vramlens, else PyTorch's snapshots.
        facts: of single ranks' recordings, by rank.
        ledgers: bytes of the ledger that are not the usual ones, by rank.
        salt: what makes the noise of these ranks theirs.
    """

    chance: random.Random
    world: int
    model: Model
    folder: Path
    vram: bool
    habits: dict[int, list[Habit]]
    layers: dict[int, int]
    limits: dict[int, int]
    divisions: dict[int, int]
    facts: dict[int, dict[str, Any]]
    ledgers: dict[int, dict[str, int]]
    salt: float
    stop_after: int | None = None
    per_host: int = 8

    def usual_peak(self) -> SimulatedGpu:
        """A rank on which nothing is planted."""
        return self._run(-1)[0]

    def fails(self, number: int) -> bool:
        """True if a rank runs out of memory."""
        return self._run(number)[0].failed is not None

    def runs(self) -> dict[int, SimulatedGpu]:
        runs = {}
        for number in range(self.world):
            runs[number], ended_well = self._run(number)
            self._write(number, runs[number], ended_well)
        return runs

    def _run(self, number: int) -> tuple[SimulatedGpu, bool]:
        chance = random.Random(f"{self.salt} {number}")
        start = START_US + chance.randrange(200_000)
        divisions = self.divisions.get(number, 0)
        limit = self.limits.get(number, TOTAL)
        gpu = SimulatedGpu(start, limit, power2_divisions=divisions)
        habits = [*self.habits.get(-2, []), *self.habits.get(number, [])]
        rank = SimulatedRank(self.model, gpu, chance, habits=habits, layers=self.layers.get(number))
        if number not in self.limits:
            rank.stop_after = self.stop_after
        try:
            return gpu, rank.run()
        except OutOfMemory:
            return gpu, False

    def _write(self, number: int, gpu: SimulatedGpu, ended_well: bool) -> None:
        settings = dict(SETTINGS)
        if number in self.divisions:
            parts = self.divisions[number]
            settings["PYTORCH_CUDA_ALLOC_CONF"] = f"roundup_power2_divisions:{parts}"
            settings["roundup_power2_divisions"] = {str(1 << n): parts for n in range(16)}
        data = pickle.dumps(gpu.snapshot(settings, self.model.marks), 4)
        if not self.vram:
            (self.folder / f"rank{number}.pickle").write_bytes(data)
            return
        trigger = "exit"
        if not ended_well:
            trigger = "oom" if gpu.failed else "sigterm"
        meta = self._meta(number, gpu, trigger)
        with zipfile.ZipFile(self.folder / f"rank{number:05d}.vram", "w") as archive:
            archive.writestr("meta.json", json.dumps(meta))
            archive.writestr("ledger.json", json.dumps(self._ledger(number, gpu)))
            archive.writestr("snapshot.pickle", data)

    def _meta(self, number: int, gpu: SimulatedGpu, trigger: str) -> dict[str, Any]:
        meta = {
            "schema": "vramlens.recording/1", "vramlens": "0.2.0", "torch": "2.11.0+cu130",
            "cuda": "13.0", "driver": "580.1", "python": "3.12.3", "platform": "Linux",
            "command": ["python", "train/train.py"], "trigger": trigger, "pid": 4000 + number,
            "host": f"node{number // self.per_host:03d}", "rank": number,
            "local_rank": number % self.per_host, "world_size": self.world,
            "device_name": "NVIDIA H100", "total_bytes": {"0": TOTAL}, "max_events": 2_097_152,
            "wrapped": {"0": False}, "step": self.model.steps, "module_marks": False,
            "dump_seconds": 0.1, "started_us": START_US + number, "written_us": gpu.clock_us + 9,
            "oom": None,
            "devices": {"0": {"name": "NVIDIA H100", "uuid": f"GPU-{number}",
                              "total_bytes": TOTAL, "memory_fraction": 1.0,
                              "limit_bytes": None, "stats": {}}},
        }  # fmt: skip
        if gpu.failed and trigger == "oom":
            requested, room = gpu.failed
            meta["oom"] = {"device": 0, "requested_bytes": requested, "device_free_bytes": room}
        if trigger == "sigterm":
            meta["ending"] = "SIGTERM, at train/train.py:61 in train_step"
        return meta | self.facts.get(number, {})

    def _ledger(self, number: int, gpu: SimulatedGpu) -> dict[str, Any]:
        special = self.ledgers.get(number, {})
        chance = random.Random(f"ledger {number}")
        rows = {
            "driver_reserved": 644_939_776,
            "pytorch_allocated": gpu.peak_requested,
            "pytorch_cached": gpu.peak_reserved - gpu.peak_requested,
            "nccl": 420 * MIB + chance.randrange(MIB),
            "this_process_other": 610 * MIB + chance.randrange(4 * MIB),
            "other_processes": 0,
        } | special
        rows["free"] = TOTAL - sum(rows.values())
        entries = [
            {"kind": kind, "bytes": size, "confidence": "exact", "note": ""}
            for kind, size in rows.items()
        ]
        own = sum(rows[kind] for kind in rows if kind not in ("free", "other_processes"))
        processes = [{"pid": 4000 + number, "bytes": own, "name": "python3", "is_this": True}]
        if rows["other_processes"]:
            other = {"pid": 777, "bytes": rows["other_processes"], "name": "jupyter"}
            processes.append(other | {"is_this": False})
        device = {
            "device": 0, "name": "NVIDIA H100", "uuid": None, "total_bytes": TOTAL,
            "rows": entries, "has_context": True, "processes": processes, "notes": [],
        }  # fmt: skip
        moment = {"devices": {"0": device}}
        return {"start": moment, "peak": moment, "end": moment}


def factory(chance: random.Random, folder: Path, kind: str, **more: Any) -> Factory:
    """A job of the usual ranks."""
    varied = more.pop("varied", 0.0)
    return Factory(
        chance=chance,
        world=more.pop("world", chance.choice(WORLDS)),
        model=random_model(chance, kind, varied=varied),
        folder=folder,
        vram=more.pop("vram", chance.random() < 0.5),
        habits={},
        layers={},
        limits={},
        divisions={},
        facts={},
        ledgers={},
        salt=chance.random(),
        **more,
    )


def planted_size(made: Factory, least: float = 0.04, most: float = 0.5) -> int:
    """A size that stands out: a share of the usual peak, and 8 MiB."""
    peak = made.usual_peak().peak_requested
    return max(8 * MIB, int(peak * made.chance.uniform(least, most)))


class NotPlanted(Exception):
    """What was planted does not show: the peak comes at another moment."""


def done(made: Factory, kind: str, *expected: Expected, **more: Any) -> MadeJob:
    return MadeJob(kind, made.world, made.folder, differences=expected, runs=made.runs(), **more)


def higher(made: Factory, kind: str, *expected: Expected, **more: Any) -> MadeJob:
    """A job in which the ranks at fault have higher peaks than the others, as must be.

    Raises:
        NotPlanted: they have not.
    """
    job = done(made, kind, *expected, **more)
    runs = job.runs or {}
    at_fault = {rank for difference in expected for rank in difference.ranks}
    usual = statistics.median(
        gpu.peak_requested for rank, gpu in runs.items() if rank not in at_fault
    )
    least = usual + max(8 * MIB, usual * 0.04)
    if min(runs[rank].peak_requested for rank in at_fault) < least:
        raise NotPlanted
    return job


def any_kind(chance: random.Random) -> str:
    return chance.choice(("gpt", "moe", "conv"))
