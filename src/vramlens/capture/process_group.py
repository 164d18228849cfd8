"""This process's place in a distributed job, read from the environment and from what PyTorch
already knows.

Nothing here communicates, initialises CUDA or imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vramlens.capture.torch_api import cuda_in_use
from vramlens.capture.triggers.on_import import when_imported
from vramlens.foreign_text import text_of
from vramlens.ground.launcher import (
    LOCAL_RANK,
    LOCAL_SIZE,
    RANK,
    WORLD_SIZE,
    launcher_of,
    number_in,
)
from vramlens.ground.program_errors import answer_of, own_errors
from vramlens.units import counted, listed

_MOST_GROUPS, _MOST_SPANS, _LONGEST_NAME = 256, 1000, 100


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process group that this process belongs to.

    Attributes:
        name: PyTorch's name for it; "0" is the default group.
        description: what the program called it; empty if nothing.
        backend: such as ``nccl`` or ``cpu:gloo,cuda:nccl``.
        ranks: the global ranks in it.
    """

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class DistributedState:
    """Where this process stands in its job; None is what cannot be told.

    Attributes:
        initialized: whether the default process group exists now.
        launcher: "torchrun", "accelerate", "slurm", "mpi", "environment" (RANK and WORLD_SIZE set
            by hand) or "none".
        rank, local_rank, world_size: from the process group, else from the launcher's environment.
        backend: of the default group.
        timeout_s: of the default group, in seconds.
        groups: every process group that this process has made.
        device: the current CUDA device; None before this process uses CUDA.
        device_set_first: whether ``torch.cuda.set_device`` came before the first use of CUDA; None
            where nobody watched (``watch_device``).
        duplicate_device: whether another local rank very likely uses the same device, inferred from
            LOCAL_RANK; never asked of the others.
        note: why, in one sentence; empty where there is nothing to say.
    """

    initialized: bool
    launcher: str
    rank: int | None
    local_rank: int | None
    world_size: int | None
    backend: str | None
    timeout_s: float | None
    groups: tuple[ProcessGroup, ...]
    device: int | None
    device_set_first: bool | None
    duplicate_device: bool | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        fields = asdict(self)
        fields["groups"] = [{**group, "ranks": list(group["ranks"])} for group in fields["groups"]]
        return fields

    def __str__(self) -> str:
        return text_of(_lines(self))

    def __repr__(self) -> str:
        return str(self)


def distributed_state(environment: Mapping[str, str] | None = None) -> DistributedState:
    """This process's place in its job right now. Never raises, never waits for another rank.

    Args:
        environment: read instead of ``os.environ``.
    """
    variables = os.environ if environment is None else environment
    launcher = launcher_of(variables)
    many = launcher != "none"
    rank, local_rank, world_size, local_size = (
        number_in(variables, *names) if many else None
        for names in (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_SIZE)
    )
    distributed = initialized_group()
    backend = timeout = None
    groups: tuple[ProcessGroup, ...] = ()
    if distributed is not None:
        rank = answer_of(distributed.get_rank, rank)
        world_size = answer_of(distributed.get_world_size, world_size)
        backend = answer_of(lambda: str(distributed.get_backend()))
        timeout = _timeout(distributed)
        groups = _groups(distributed)
    device, devices = _device()
    duplicate, note = _duplicate(device, devices, local_rank, local_size)
    first = _watch.set_first()
    if first is False and device and not note:
        note = (
            "CUDA was used before torch.cuda.set_device: there may be a CUDA context on device 0."
        )
    return DistributedState(
        initialized=distributed is not None,
        launcher=launcher,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        backend=backend,
        timeout_s=timeout,
        groups=groups,
        device=device,
        device_set_first=first,
        duplicate_device=duplicate,
        note=note,
    )


def initialized_group() -> Any:
    """``torch.distributed`` once its default group exists, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    exists = answer_of(lambda: distributed.is_available() and distributed.is_initialized())
    return distributed if exists else None


def groups_for_meta() -> list[dict[str, Any]]:
    """The process groups of this process beside the default one, small enough for a recording;
    never raises.

    Ranks are spans, ``[first, count, step]`` each: those of a mesh's dimension are one or few,
    however many there are.
    """
    distributed = initialized_group()
    if distributed is None:
        return []
    groups = []
    spans_left = _MOST_SPANS
    for group in _groups(distributed)[:_MOST_GROUPS]:
        spans = rank_spans(group.ranks)
        if group.name == "0" or len(spans) > spans_left:
            continue
        spans_left -= len(spans)
        description = group.description[:_LONGEST_NAME]
        groups.append(
            {"name": group.name[:_LONGEST_NAME], "description": description, "ranks": spans}
        )
    return groups


def rank_spans(ranks: Sequence[int]) -> list[list[int]]:
    """Ranks as evenly spaced spans, ``[first, count, step]`` each, ascending."""
    ordered = sorted(set(ranks))
    spans: list[list[int]] = []
    at = 0
    while at < len(ordered):
        step = ordered[at + 1] - ordered[at] if at + 1 < len(ordered) else 1
        end = at + 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        spans.append([ordered[at], end - at, step if end - at > 1 else 1])
        at = end
    return spans


def warn_if_not_destroyed() -> str | None:
    """One sentence if the process group still exists, to be asked when the program ends; else
    None. Never raises.
    """
    distributed = initialized_group()
    if distributed is None:
        return None
    backend = answer_of(lambda: str(distributed.get_backend())) or "its backend"
    return (
        f"The process group ({backend}) was not destroyed: call "
        "torch.distributed.destroy_process_group() at the end, or its threads and memory stay "
        "until the process exits."
    )


def watch_device() -> None:
    """Notices from now on whether ``torch.cuda.set_device`` comes before the first use of CUDA.
    Harmless, repeatable.

    The function is replaced by one that looks once and puts the original back.
    """
    _watch.start()


class _Watch:
    """The observation of ``torch.cuda.set_device``.

    Attributes:
        began: whether it began before CUDA was used.
        seen: whether a device was set before CUDA was used; None before the first call.
    """

    def __init__(self) -> None:
        self.began = False
        self.seen: bool | None = None
        self._asked = False

    def start(self) -> None:
        if not self._asked:
            self._asked = True
            with own_errors():
                when_imported("torch", self._attach)

    def set_first(self) -> bool | None:
        """The answer now; None where it is open or was not watched."""
        if not self.began or self.seen is not None:
            return self.seen
        return False if cuda_in_use() is not None else None

    def _attach(self) -> None:
        with own_errors():
            cuda = sys.modules["torch"].cuda
            if cuda.is_initialized():
                return
            original = cuda.set_device

            def set_device(device: Any) -> Any:
                with own_errors():
                    if self.seen is None:
                        self.seen = not cuda.is_initialized()
                    if cuda.set_device is set_device:
                        cuda.set_device = original
                return original(device)

            set_device.__doc__ = original.__doc__
            set_device.__wrapped__ = original  # type: ignore[attr-defined]
            cuda.set_device = set_device
            self.began = True


_watch = _Watch()


def _world(distributed: Any) -> Any:
    return getattr(getattr(distributed, "distributed_c10d", None), "_world", None)


def _timeout(distributed: Any) -> float | None:
    """Of the default group's backends the longest: each device has a backend, most share one."""
    world = _world(distributed)
    group: Any = None if world is None else world.default_pg
    timeouts = []
    for device in answer_of(lambda: list(group._device_types)) or ():
        options = answer_of(lambda device=device: group._get_backend(device).options)
        seconds = answer_of(lambda options=options: float(options._timeout.total_seconds()))
        timeouts += [] if seconds is None else [seconds]
    return max(timeouts, default=None)


def _groups(distributed: Any) -> tuple[ProcessGroup, ...]:
    world = _world(distributed)
    groups = []
    for group in answer_of(lambda: list(world.pg_map)) or ():
        ranks = answer_of(
            lambda group=group: tuple(int(rank) for rank in world.pg_group_ranks[group]), ()
        )
        name = answer_of(lambda group=group: str(world.pg_names[group]), "")
        backend = answer_of(lambda group=group: str(world.pg_backend_config[group]), "")
        description = answer_of(lambda group=group: str(group.group_desc), "")
        groups.append(
            ProcessGroup(name, "" if description == "undefined" else description, backend, ranks)
        )
    return tuple(groups)


def _device() -> tuple[int | None, int | None]:
    """The current device and how many there are; asked only where CUDA is in use: asking would
    make it so.
    """
    cuda = cuda_in_use()
    return (
        (None, None)
        if cuda is None
        else (answer_of(cuda.current_device), answer_of(cuda.device_count))
    )


def _duplicate(
    device: int | None, devices: int | None, local_rank: int | None, local_size: int | None
) -> tuple[bool | None, str]:
    if (
        device is None
        or devices is None
        or local_rank is None
        or local_size is None
        or local_size < 2
    ):
        return None, ""
    # Each rank may have been given devices of its own: nothing is known of the others'.
    if devices < local_size:
        return None, f"{counted(devices, 'device')} visible for {local_size} local ranks."
    if device == local_rank:
        return False, ""
    if device:
        return (
            None,
            f"Device {device} is in use although LOCAL_RANK is {local_rank}; others may use it, "
            "too.",
        )
    return True, (
        f"Device 0, the default, is in use although LOCAL_RANK is {local_rank}: call"
        f" torch.cuda.set_device({local_rank}) first, or this rank shares local rank 0's GPU."
    )


def _lines(state: DistributedState) -> list[str]:
    if state.launcher == "none" and not state.initialized:
        return ["One process: no launcher, no process group."]
    lines = [_rank_line(state), *_group_lines(state)]
    if state.device is not None:
        lines.append(f"Device: {state.device}{_WHEN_SET[state.device_set_first]}")
    return [*lines, state.note] if state.note else lines


_WHEN_SET = {
    True: ", set before the first use of CUDA",
    False: ", not set before the first use of CUDA",
    None: "",
}
_LAUNCHED_BY = {"none": "", "environment": ", ranks set in the environment"}


def _rank_line(state: DistributedState) -> str:
    rank = "unknown" if state.rank is None else state.rank
    size = "" if state.world_size is None else f" of {state.world_size}"
    local = "" if state.local_rank is None else f" (local {state.local_rank})"
    launcher = _LAUNCHED_BY.get(state.launcher, f", launched by {state.launcher}")
    return f"Rank {rank}{size}{local}{launcher}"


def _group_lines(state: DistributedState) -> list[str]:
    if not state.initialized:
        return ["Process group: none yet in this process"]
    timeout = "" if state.timeout_s is None else f", timeout {state.timeout_s:g} s"
    lines = [f"Process group: {state.backend or 'backend unknown'}{timeout}"]
    for group in state.groups[1:]:
        name, ranks = group.description or "group " + group.name, listed(group.ranks, 8)
        lines.append(f"  {name}: {group.backend}, ranks {ranks}")
    return lines
