"""Ranks of a job that never ran: a real rank's recording, with one known cause of difference put into it."""

from __future__ import annotations

import bisect
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

from recordings import data_of, read
from vramlens.ranks import RankSummary, summarise
from vramlens.units import MIB

BASE = "ranks/leak_rank1/leak_rank1.rank0"
"""A clean run of DistributedDataParallel, eight steps, 360 MB at its peak."""
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


MAIN = [frame("train/job.py", 90, "main"), frame("train/job.py", 99, "<module>")]


@cache
def base() -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(data_of(BASE))
    return found


class Job:
    """A rank's snapshot that can be changed."""

    def __init__(self) -> None:
        source = base()
        self.snapshot = dict(source)
        self.events: list[dict[str, Any]] = [dict(event) for event in source["device_traces"][0]]
        self.segments = deepcopy(source["segments"])
        self.other: dict[int, list[dict[str, Any]]] = {}
        self._next = 0x7F0000000000
        marks = [
            note["time_us"]
            for note in source["external_annotations"]
            if note["name"].startswith("Optimizer.step#") and note["stage"] == "END"
        ]
        self.step_ends = marks
        """When each step ended, in microseconds."""

    def index(self, time_us: int) -> int:
        return bisect.bisect_left(self.events, time_us, key=lambda event: event["time_us"])

    def put(
        self, time_us: int, size: int, frames: list[dict[str, Any]], until_us: int | None = None, device: int = 0
    ) -> None:
        """An allocation in a segment of its own."""
        address, whole = self._next, -(-size // (2 * MIB)) * 2 * MIB
        self._next += whole + 2 * MIB
        one = {"addr": address, "stream": 0, "compile_context": "N/A", "user_metadata": "", "frames": frames}
        made = [
            {**one, "action": "segment_alloc", "size": whole, "time_us": time_us},
            {**one, "action": "alloc", "size": size, "time_us": time_us},
        ]
        events = self.events if device == 0 else self.other.setdefault(device, [])
        place = self.index(time_us) if device == 0 else len(events)
        events[place:place] = made
        block = {
            "address": address, "size": whole, "requested_size": size, "state": "active_allocated", "frames": frames,
        }  # fmt: skip
        if until_us is not None:
            gone = [
                {**one, "action": action, "size": size, "time_us": until_us, "frames": []}
                for action in ("free_requested", "free_completed")
            ]
            gone.append({**one, "action": "segment_free", "size": whole, "time_us": until_us, "frames": []})
            place = self.index(until_us) if device == 0 else len(events)
            events[place:place] = gone
            return
        self.segments.append(
            {
                "device": device, "address": address, "total_size": whole, "allocated_size": whole,
                "active_size": whole, "requested_size": size, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
                "blocks": [block],
            }
        )  # fmt: skip

    def scale(self, factor: float, chosen: Callable[[dict[str, Any]], bool]) -> None:
        """Makes the chosen allocations larger or smaller; everything moves apart so that there is room."""
        room = 4
        sizes: dict[int, int] = {}
        low = min(event["addr"] for event in self.events)
        # A block's size may only change where all of the address space does: every address is spread by ``room``.
        for event in self.events:
            address = event["addr"]
            event["addr"] = low + (address - low) * room
            if event["action"] == "segment_alloc":
                event["size"] *= room
            elif event["action"] == "alloc":
                sizes[address] = int(event["size"] * factor) if chosen(event) else event["size"]
                event["size"] = sizes[address]
            elif address in sizes:
                event["size"] = sizes[address]
        for segment in self.segments:
            segment["address"] = low + (segment["address"] - low) * room
            for key in ("total_size",):
                segment[key] *= room
            at = segment["address"]
            for block in segment["blocks"]:
                block["address"] = at
                block["size"] *= room
                at += block["size"]

    def data(self) -> bytes:
        devices = max([0, *self.other]) + 1
        traces = [self.events if device == 0 else self.other.get(device, []) for device in range(devices)]
        return pickle.dumps({**self.snapshot, "device_traces": traces, "segments": self.segments}, 4)

    def summary(self, rank: int) -> RankSummary:
        return summarise(read(self.data()), rank)

    # Moments

    def before_training(self) -> int:
        """Just before the first step, after the model was built."""
        first_forward = next(
            event["time_us"] for event in self.events if any(f["name"] == "forward" for f in event["frames"])
        )
        return int(first_forward)

    def within(self, step: int) -> tuple[int, int]:
        """The highest moment of a step lies between these two."""
        start = self.step_ends[step - 1] if step else self.before_training()
        return start + 1, self.step_ends[step] - 1


def is_activation(event: dict[str, Any]) -> bool:
    names = {f["name"] for f in event["frames"]}
    return "forward" in names or "lm_loss" in names or not event["frames"]


# One function a cause: what it puts into a rank's run.


def clean(job: Job) -> None:
    pass


def leak(job: Job) -> None:
    for step in range(8):
        job.put(job.within(step)[0], 12 * MIB, [frame("train/metrics.py", 31, "update"), *MAIN])


def rank0_gather(job: Job, world: int = 8) -> None:
    """The list that a gather fills: one tensor a rank."""
    frames = [frame("train/evaluate.py", 52, "collect"), *MAIN]
    for step in range(2, 7):
        start, end = job.within(step)
        for _ in range(world):
            job.put(start, 80 * MIB // world, frames, until_us=end)


def object_collective(job: Job) -> None:
    frames = [
        frame(f"{TORCH}/distributed/distributed_c10d.py", 2900, "_object_to_tensor"),
        frame(f"{TORCH}/distributed/distributed_c10d.py", 3100, "gather_object"),
        frame("train/evaluate.py", 71, "gather_results"),
        *MAIN,
    ]
    start, end = job.within(5)
    job.put(start, 300 * MIB, frames, until_us=end)


def map_location(job: Job) -> None:
    frames = [
        frame(f"{TORCH}/serialization.py", 1600, "restore_location"),
        frame(f"{TORCH}/serialization.py", 1400, "load"),
        frame("train/job.py", 40, "resume"),
        *MAIN,
    ]
    job.put(job.before_training(), 200 * MIB, frames, device=1)


def full_state_dict(job: Job) -> None:
    frames = [
        frame(f"{TORCH}/distributed/_state_dict_utils.py", 200, "_gather_state_dict"),
        frame(f"{TORCH}/distributed/checkpoint/state_dict.py", 900, "get_model_state_dict"),
        frame("train/job.py", 61, "save"),
        *MAIN,
    ]
    start, end = job.within(4)
    for _ in range(20):
        job.put(start, 12 * MIB, frames, until_us=end)


def uneven_batch(job: Job) -> None:
    job.scale(1.4, is_activation)


def pipeline_stage(job: Job) -> None:
    """More layers: each parameter of some layers once more, and their activations in every step."""
    parameters = [event for event in job.events if event["action"] == "alloc"][:40]
    for event in parameters:
        job.put(event["time_us"], event["size"] * 3, event["frames"])
    for step in range(8):
        start, end = job.within(step)
        model = next(
            e for e in job.events if e["action"] == "alloc" and any(f["name"] == "forward" for f in e["frames"])
        )
        job.put(start, 60 * MIB, model["frames"], until_us=end)


def first_last_stage(job: Job) -> None:
    for step in range(8):
        start, end = job.within(step)
        frames = [
            frame(f"{TORCH}/nn/functional.py", 3400, "cross_entropy"),
            frame("train/loss.py", 88, "token_loss"),
            *MAIN,
        ]
        job.put(start, 220 * MIB, frames, until_us=end)


def embedding_shard(job: Job) -> None:
    frames = [
        frame(f"{TORCH}/nn/modules/sparse.py", 170, "__init__"),
        frame("train/tables.py", 12, "build"),
        *MAIN,
    ]
    job.put(job.before_training() - 1, 400 * MIB, frames)


def moe_hot_rank(job: Job) -> None:
    for step in range(8):
        start, end = job.within(step)
        job.put(start, 150 * MIB, MOE, until_us=end)


MOE = [frame("train/moe.py", 77, "forward"), frame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl"), *MAIN]


def moe_usual(job: Job) -> None:
    for step in range(8):
        start, end = job.within(step)
        job.put(start, 20 * MIB, MOE, until_us=end)


def allocator(job: Job) -> None:
    """Segments that small blocks keep alive."""
    start, _ = job.within(1)
    for _ in range(3):
        job.put(start, 128 * 1024, MAIN)
        segment = job.segments[-1]
        segment["total_size"] = 160 * MIB
        rest = 160 * MIB - segment["blocks"][0]["size"]
        address = segment["address"] + segment["blocks"][0]["size"]
        segment["blocks"].append({"address": address, "size": rest, "requested_size": 0, "state": "inactive"})
        job._next += 160 * MIB
        for event in job.events:
            if event["addr"] == segment["address"] and event["action"] == "segment_alloc":
                event["size"] = 160 * MIB


def rank_only(job: Job) -> None:
    frames = [frame("train/ema.py", 18, "copy_weights"), *MAIN]
    for _ in range(10):
        job.put(job.before_training(), 20 * MIB, frames)


def stray_context(job: Job) -> None:
    job.put(job.before_training(), 130 * MIB, [frame("train/job.py", 21, "warm_up"), *MAIN], device=1)


def data_parallel(job: Job) -> None:
    frames = [
        frame(f"{TORCH}/nn/parallel/comm.py", 230, "gather"),
        frame(f"{TORCH}/nn/parallel/scatter_gather.py", 100, "gather"),
        frame(f"{TORCH}/nn/parallel/data_parallel.py", 200, "forward"),
        frame("train/job.py", 70, "step"),
        *MAIN,
    ]
    for step in range(8):
        start, end = job.within(step)
        job.put(start, 180 * MIB, frames, until_us=end)


PLANTED: dict[str, tuple[Callable[[Job], None], str, int | None]] = {
    "leak": (leak, "train/metrics.py", 31),
    "rank0_gather": (rank0_gather, "train/evaluate.py", 52),
    "object_collective": (object_collective, "train/evaluate.py", 71),
    "map_location": (map_location, "train/job.py", 40),
    "full_state_dict": (full_state_dict, "train/job.py", 61),
    "uneven_batch": (uneven_batch, "", None),
    "pipeline_stage": (pipeline_stage, "", None),
    "first_last_stage": (first_last_stage, "train/loss.py", 88),
    "embedding_shard": (embedding_shard, "train/tables.py", 12),
    "moe_hot_rank": (moe_hot_rank, "train/moe.py", 77),
    "allocator": (allocator, "", None),
    "rank_only": (rank_only, "train/ema.py", 18),
    "stray_context": (stray_context, "train/job.py", 21),
    "data_parallel": (data_parallel, "train/job.py", 70),
}
"""By cause: what puts it there, and the line that is to be named."""


@cache
def planted(cause: str, world: int = 8) -> RankSummary:
    """The summary of a rank with a cause in it."""
    job = Job()
    if cause == "rank0_gather":
        rank0_gather(job, world)
    else:
        (clean if cause == "clean" else moe_usual if cause == "moe_usual" else PLANTED[cause][0])(job)
    return job.summary(0)
