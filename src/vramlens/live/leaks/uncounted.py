"""What no chain explains: memory that grows by the counters and that no Python object stands for,
told by its cause.

Which counter decides which class, each only where it rises in at least six steps, from early on to
the end, and does not slow down (``CounterSeries.pace``): what fills and stops is a cache, a workspace, a
first batch.

- pinned: page-locked memory handed out; where only what PyTorch keeps of it grows, possible at
most.
- stream: blocks that are freed and await another stream (active - allocated); or reserved memory
that grows while what is allocated does not, and lies idle on three streams or more.
- pool: the same, and it lies in three private pools or more.
- external: what the driver counts for this process beside PyTorch's memory; possible where it
cannot tell processes.
- other: allocated memory that grows, of which the search found less than half.
- context: a context of this process on a device on which PyTorch holds nothing. It does not grow:
possible.

Reserved memory that grows otherwise is PyTorch's cache, and no leak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.leak.fixes import fix_of_class
from vramlens.live.counters.gpu_memory import ProcessGpus
from vramlens.live.counters.step_counters import CounterSeries, StepCounters
from vramlens.live.growth.autocast_cache import caching_depth
from vramlens.live.growth.pace import Pace
from vramlens.live.heap.objects import class_module, class_name, class_order
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, chain_of
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.owner import owner_of
from vramlens.live.leaks.leak_report import LiveLeak
from vramlens.units import MIB, counted, format_size

_LEAST_BYTES = 2 * MIB  # the allocator's smallest segment
_LEAST_PINNED = MIB
_FEWEST_HOLDERS = 3
"""Streams or pools: two are usual (copies beside compute); each more is memory lost before a word."""
_SURE_RISES = 8
"""Of what the driver counts: kernels that are loaded late rise in the first steps, and again at the
first evaluation. Half as many may be these; twice as many come after the run of a test.
"""


def counted_leaks(
    counters: StepCounters,
    search: Search,
    statements: Statements,
    known: dict[str, int],
    leaks: Iterable[LiveLeak],
) -> list[LiveLeak]:
    """Leaks that only the counters show.

    Args:
        known: by device, the bytes of all storages that were found.
        leaks: those that have an owner.
    """
    gpu = counters.gpu
    if gpu is None:
        return []
    explained: dict[str, int] = {}
    for leak in leaks:
        explained[leak.device] = explained.get(leak.device, 0) + leak.bytes_per_step
    entries = list(_pinned(counters, explained.get("cpu", 0)))
    for device, series in counters.reserved.items():
        entries += _waiting(counters.waiting[device], device)
        growth = series.pace()
        allocated_pace = counters.allocated[device].pace()
        is_alone = growth is not None and (
            allocated_pace is None or 2 * allocated_pace.bytes_per_step < growth.bytes_per_step
        )
        if growth is not None and is_alone and series.grown >= _LEAST_BYTES:
            entries.append(_reserved(search, statements, gpu.segments(), device, series, growth))
        name = f"cuda:{device}"
        entries += _unexplained(
            counters, gpu, search, device, known.get(name, 0), explained.get(name, 0)
        )
    for device, series in counters.outside.items():
        entries += _outside(counters, device, series)
    return [*entries, *_contexts(counters, gpu)]


def _entry(
    kind: str,
    device: str,
    series: CounterSeries,
    pace: Pace,
    why: tuple[str, ...],
    fix: str,
    verdict: Verdict = Verdict.LIKELY,
) -> LiveLeak:
    return LiveLeak(
        verdict=verdict,
        kind=kind,
        bytes_per_step=pace.bytes_per_step,
        bytes=series.grown,
        steps=pace.steps,
        first_step=pace.first,
        last_step=pace.last,
        evidence=why,
        fix=fix_of_class(fix) if fix else None,
        device=device,
        is_freed=fix == "waiting",
    )


def _pinned(counters: StepCounters, explained: int) -> Iterator[LiveLeak]:
    series, owned = counters.pinned, counters.pinned_owned
    pace = series.pace()
    if pace is not None and series.grown >= _LEAST_PINNED:
        if 2 * explained < pace.bytes_per_step:
            why = (
                f"PyTorch has handed out {_size(series.values[-1])} of the host's pinned memory,"
                f" {_size(series.grown)} more than at the start, and no tensor visible from "
                "Python uses it"
            )
            yield _entry("pinned", "cpu", series, pace, (why,), "pinned")
        return
    pace = owned.pace()
    if pace is not None and owned.grown >= _LEAST_PINNED:
        why = (
            f"PyTorch keeps {_size(owned.values[-1])} of pinned memory, of which"
            f" {_size(series.values[-1])} is in use: the rest is kept for reuse, in blocks of"
            " powers of two, and is never returned to the host"
        )
        yield _entry("pinned", "cpu", owned, pace, (why,), "pinned", Verdict.POSSIBLE)


def _waiting(series: CounterSeries, device: int) -> Iterator[LiveLeak]:
    pace = series.pace()
    if pace is not None and series.grown >= _LEAST_BYTES:
        why = f"{_size(series.values[-1])} is freed but waits for another stream (record_stream)"
        yield _entry("stream", f"cuda:{device}", series, pace, (why,), "waiting")


def _reserved(
    search: Search,
    statements: Statements,
    segments: list[dict[str, Any]] | None,
    device: int,
    series: CounterSeries,
    pace: Pace,
) -> LiveLeak:
    """Reserved memory that grows while what is allocated does not: by streams, by pools, or
    PyTorch's cache.
    """
    name = f"cuda:{device}"
    streams, pools = _idle_bytes(segments or (), device)
    needed = series.grown / 2
    if len(pools) >= _FEWEST_HOLDERS and sum(pools.values()) >= needed:
        why = (
            f"{counted(len(pools), 'private pool')} (CUDA graphs, MemPools) hold "
            f"{_size(sum(pools.values()))} with nothing in it now, and nothing else can use "
            "that memory"
        )
        leak = _entry("pool", name, series, pace, (why,), "pool")
        return _with_owner(search, statements, leak)
    if len(streams) >= _FEWEST_HOLDERS and sum(streams.values()) >= needed:
        why = (
            f"{counted(len(streams), 'stream')} beside the default one hold "
            f"{_size(sum(streams.values()))} with nothing in it: other streams cannot use a "
            "stream's free memory"
        )
        return _entry("stream", name, series, pace, (why,), "stream")
    why = "allocated memory did not grow; the growth is in PyTorch's cache, which is reused"
    if segments is None:
        why += (
            " (this version of PyTorch cannot cheaply tell whether streams or private pools "
            "keep it)"
        )
    return replace(_entry("other", name, series, pace, (), "", Verdict.NOT_A_PROBLEM), reason=why)


def _idle_bytes(
    segments: Iterable[dict[str, Any]], device: int
) -> tuple[Counter[Any], Counter[Any]]:
    """Bytes in which nothing lives: by stream, of those that nothing uses; and by private pool."""
    streams: Counter[Any] = Counter()
    pools: Counter[Any] = Counter()
    busy = {0}  # the default stream's cache is used again
    for segment in segments:
        if segment.get("device", device) != device:
            continue
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        idle = segment["total_size"] - segment["active_size"]
        if pool != (0, 0):
            pools[pool] += idle
        elif segment["active_size"]:
            busy.add(segment["stream"])
        else:
            streams[segment["stream"]] += idle
    for stream in busy:
        streams.pop(stream, None)
    return streams, pools


def _with_owner(search: Search, statements: Statements, leak: LiveLeak) -> LiveLeak:
    """A leak of pools with what keeps the graphs, if the search came by them."""
    graphs = [place for place, value in enumerate(search.order) if _is_graph(value)]
    if len(graphs) < _FEWEST_HOLDERS:
        return replace(
            leak,
            evidence=(
                *leak.evidence,
                "few of them exist as Python objects: captures failed, or a compiled function "
                "keeps them",
            ),
        )
    place = graphs[len(graphs) // 2]
    parents = search.parents([place])
    chain = chain_of(search, search.path(place, parents), parents)
    at = max(len(chain.links) - 2, -1)
    keeper = statements.keeper(
        Chain(chain.root, tuple(chain.links[: at + 1])), search.order[place], is_graph=False
    )
    owner = owner_of(search, chain, at, keeper)
    why = f"{len(graphs):,} of them exist as Python objects"
    return replace(leak, owner=owner, evidence=(*leak.evidence, why))


def _is_graph(value: Any) -> bool:
    return any(
        class_name(base) in ("CUDAGraph", "MemPool") and class_module(base).startswith("torch.cuda")
        for base in class_order(type(value))
    )


def _unexplained(
    counters: StepCounters,
    gpu: ProcessGpus,
    search: Search,
    device: int,
    known: int,
    explained_per_step: int,
) -> Iterator[LiveLeak]:
    """Allocated memory that grew, of which the search found less than half.

    What does not grow (cuBLAS's workspaces) is hidden as well: growth that leaks with an owner
    explain is theirs.
    """
    series = counters.requested[device]
    pace = series.pace()
    now = gpu.counts(device)
    if pace is None or now is None or series.grown < _LEAST_BYTES or not search.complete:
        return
    hidden = now.requested - known
    if 2 * hidden < series.grown or 2 * explained_per_step >= pace.bytes_per_step:
        return
    # What is freed and awaits a stream is still counted as asked for.
    allocated = counters.allocated[device].pace()
    if allocated is None or 2 * allocated.bytes_per_step < pace.bytes_per_step:
        return
    why = (
        f"PyTorch counts {_size(now.requested)} requested by tensors, but the search found "
        f"{_size(known)}: the rest is kept by a C++ object that Python cannot see"
    )
    depth = caching_depth(search.torch.torch)
    if depth:
        why += f"; this thread is in {counted(depth, 'torch.autocast block')}, which keeps cast copies of weights"
        yield _entry("cache", f"cuda:{device}", series, pace, (why,), "autocast")
    else:
        yield _entry("other", f"cuda:{device}", series, pace, (why,), "hidden")


def _outside(counters: StepCounters, device: int, series: CounterSeries) -> Iterator[LiveLeak]:
    pace = series.pace()
    if pace is None or series.grown < _LEAST_BYTES:
        return
    why = [
        f"outside PyTorch's memory, the driver counts {_size(series.values[-1])}, "
        f"{_size(series.grown)} more than before"
    ]
    groups = 0 if counters.gpu is None else counters.gpu.process_groups()
    if groups > counters.groups:
        why.append(
            f"there were {counters.groups:,} process groups when the watch began, now there are"
            f" {groups:,}"
        )
    is_sure = counters.is_own and pace.steps >= _SURE_RISES
    leak = _entry(
        "external",
        f"cuda:{device}",
        series,
        pace,
        tuple(why),
        "external",
        Verdict.LIKELY if is_sure else Verdict.POSSIBLE,
    )
    doubt = "another process on this GPU looks the same (check with nvidia-smi)"
    yield leak if counters.is_own else replace(leak, reason=doubt)


def _contexts(counters: StepCounters, gpu: ProcessGpus) -> Iterator[LiveLeak]:
    """Contexts on devices that PyTorch does not use."""
    if not any(series.values[-1] for series in counters.reserved.values()):
        return
    current = gpu.current()
    for device, first in counters.contexts.items():
        counts = gpu.counts(device)
        if device == current or counts is None or counts.reserved:
            continue
        size = _own_bytes_outside(gpu, device)
        since = f"since step {first}" if first else "since before the watch began"
        usual = _size(size) if size else "usually 300 to 800 MiB"
        yield LiveLeak(
            verdict=Verdict.POSSIBLE,
            kind="context",
            bytes_per_step=0,
            bytes=size,
            steps=0,
            first_step=first,
            last_step=first,
            evidence=(
                f"this process has a CUDA context on cuda:{device} {since}, but PyTorch has no "
                f"memory there: {usual}, once; it does not grow",
            ),
            fix=fix_of_class("context"),
            device=f"cuda:{device}",
        )


def _own_bytes_outside(gpu: ProcessGpus, device: int) -> int:
    """What the driver counts for this process alone beside PyTorch's memory; 0 where it cannot."""
    outside = gpu.outside(device)
    return outside.size_bytes if outside is not None and outside.is_own else 0


def _size(size_bytes: int) -> str:
    return (
        f"{format_size(size_bytes)} ({size_bytes:,} B)"
        if size_bytes >= 1024
        else format_size(size_bytes)
    )
