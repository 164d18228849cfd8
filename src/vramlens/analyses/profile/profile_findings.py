"""Findings of a profile: a request that failed, memory that grows, a GPU that waits, each with
what to do.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from vramlens.analyses.finding import Finding
from vramlens.analyses.profile.copy_findings import copy_findings
from vramlens.analyses.profile.explained_profile import Profile
from vramlens.analyses.profile.memory_events import Holder, MemoryReport
from vramlens.analyses.profile.overview import CpuActivity, DeviceActivity
from vramlens.ground.verdict import Verdict
from vramlens.units import MIB, counted, format_duration, format_size

# A GPU that is busy for less of the time than this is worth a finding.
_IDLE_SHARE = 0.2
# Part of the idle time that one thing must fill to be called its cause.
_CAUSE_SHARE = 0.3
_SHORT_GAP_NS = 50_000
# Growth is told from what a first step builds (optimizer state, caches) by its coming back.
_LEAST_STEPS = 3

_WAITS = frozenset(
    {
        *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
        *("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize"),
        *("aten::item", "aten::_local_scalar_dense", "aten::nonzero"),
    }
)
_DRIVER_MEMORY = frozenset(
    {
        *(
            "cudaMalloc",
            "cudaFree",
            "cudaHostAlloc",
            "cudaMallocAsync",
            "cudaFreeAsync",
            "hipMalloc",
            "hipFree",
        ),
        *("cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease"),
    }
)
_LAUNCHES = frozenset(
    (
        "cudaLaunchKernel",
        "cuLaunchKernel",
        "cudaLaunchKernelExC",
        "cuLaunchKernelEx",
        "hipLaunchKernel",
    )
)
_FEWEST_TO_COMPARE = 6
_LEAST_RISE = 1.2
"""The last third of the steps takes so many times as long as the first."""
_MOST_COMPARED = 300
_LEAST_AGREEMENT = 0.7
"""Of all pairs of steps, those whose order agrees less those whose order does not: Kendall's tau."""


def profile_findings(profile: Profile) -> Profile:
    """The profile with its findings, the most useful first."""
    findings = [
        *_failed(profile),
        *_grows(profile),
        *slower_findings(profile),
        *_idle(profile),
        *copy_findings(profile),
        *_cached(profile),
    ]
    return replace(profile, findings=tuple(findings))


def _failed(profile: Profile) -> Iterator[Finding]:
    for memory in profile.memories:
        if memory.failed:
            last = memory.failed[-1]
            yield Finding(
                id="profile_out_of_memory",
                verdict=Verdict.PROVEN,
                title=f"a request of {format_size(last.bytes)} on {memory.device} failed, in"
                f" {last.operator}",
                bytes=last.bytes,
                place=last.place,
                evidence=(f"{counted(len(memory.failed), 'failed request')} in the trace",),
                fix="record the memory history until the failure: a profiler trace does not "
                "say what used the rest",
            )


def _grows(profile: Profile) -> Iterator[Finding]:
    """What stays allocated, asked for in step after step."""
    for memory in profile.memories:
        rises = len(memory.step_peaks) > 1 and memory.step_peaks[-1] > memory.step_peaks[0]
        for holder in _growing(memory, len(profile.steps)):
            yield Finding(
                id="profile_kept",
                verdict=Verdict.LIKELY if rises else Verdict.POSSIBLE,
                title=f"{holder.operator} leaves {format_size(holder.bytes // holder.steps)}"
                f" allocated in each of {holder.steps} steps on {memory.device}",
                bytes=holder.bytes,
                place=holder.place,
                evidence=(
                    f"{counted(holder.allocations, 'allocation')} of {format_size(holder.bytes)} "
                    "in total were not freed before the end of the trace",
                ),
                fix="do not keep tensors from one step to the next: append `loss.item()` or "
                "`tensor.detach().cpu()`, not the tensor",
            )


def _growing(memory: MemoryReport, steps: int) -> list[Holder]:
    """The holders of most of the kept memory, of those that nearly every step adds to."""
    enough = max(_LEAST_STEPS, steps - 1)
    growing = [
        holder
        for holder in memory.kept
        if holder.steps >= enough and holder.category not in ("optimizer_state", "gradients")
    ]
    least_bytes = 0.01 * sum(holder.bytes for holder in growing)
    return [holder for holder in growing if holder.bytes >= least_bytes][:3]


def _idle(profile: Profile) -> Iterator[Finding]:
    use = profile.use
    if use is None or use.idle_ns < _IDLE_SHARE * profile.wall_ns:
        return
    longest = use.longest[0]
    evidence = [
        f"the longest gap is {format_duration(longest.ns)}"
        + (
            f", while the CPU ran {longest.cpu[0].name}"
            if longest.cpu and longest.cpu[0].name
            else ""
        )
    ]
    cause, fix = _cause(profile, use)
    yield Finding(
        id="gpu_idle",
        verdict=Verdict.LIKELY if cause else Verdict.POSSIBLE,
        title=f"GPU {use.device} is idle for {100 * use.idle_ns / profile.wall_ns:.0f}% of the "
        "time" + (f": {cause}" if cause else ""),
        place=longest.place,
        evidence=tuple(evidence),
        fix=fix,
    )


def _cause(profile: Profile, use: DeviceActivity) -> tuple[str | None, str]:
    """What the CPU did meanwhile, if one thing stands out, and what to do about it."""
    least_ns = _CAUSE_SHARE * use.examined_ns
    sums = {
        "data": sum(
            row.ns
            for row in use.cpu_while_idle
            if (row.name or "").startswith("enumerate(DataLoader)")
        ),
        "waits": _sum(use.cpu_while_idle, _WAITS),
        "memory": _sum(use.cpu_while_idle, _DRIVER_MEMORY),
    }
    name = max(sums, key=lambda key: sums[key])
    if sums[name] >= least_ns and sums[name]:
        return _CAUSES[name]
    if _is_bound_by_launches(profile, use):
        return (
            "it finishes short kernels faster than Python launches them",
            "launch less: `torch.compile(model, mode='reduce-overhead')` (CUDA graphs), a larger"
            " batch, or the optimizer's `fused=True`",
        )
    return (
        None,
        "look at what the CPU did in the longest gaps, and let the CPU run ahead of the GPU",
    )


def _is_bound_by_launches(profile: Profile, use: DeviceActivity) -> bool:
    kernels = sum(row.calls for row in profile.kernels)
    launching = _sum(use.cpu_while_idle, _LAUNCHES) >= 0.15 * use.examined_ns
    short_gaps = launching or use.idle_ns < _SHORT_GAP_NS * use.gaps
    return use.gaps > 100 and short_gaps and use.busy_ns < 50_000 * kernels


_CAUSES = {
    "data": (
        "the loop waits for its next batch",
        "load ahead: `DataLoader(..., num_workers=8, pin_memory=True, prefetch_factor=4,"
        " persistent_workers=True)`",
    ),
    "waits": (
        "the CPU waits for the GPU, and then the GPU waits for the CPU",
        "take `.item()`, `.cpu()`, `print(tensor)` and `torch.cuda.synchronize()` out of the loop,"
        " or do them every 100 steps",
    ),
    "memory": (
        "the CPU requests memory from the driver and returns it",
        "keep the cache: no `torch.cuda.empty_cache()` in the loop, and shapes that repeat",
    ),
}


def _sum(activities: tuple[CpuActivity, ...], names: frozenset[str]) -> int:
    return sum(row.ns for row in activities if row.name in names)


def _cached(profile: Profile) -> Iterator[Finding]:
    """Much more reserved than ever allocated."""
    for memory in profile.memories:
        if (finding := _cached_on(memory)) is not None:
            yield finding


def _cached_on(memory: MemoryReport) -> Finding | None:
    if memory.reserved_bytes is None or not memory.exact:
        return None
    unused = memory.reserved_bytes - memory.allocated_bytes
    if unused < 256 * MIB or unused < 0.25 * memory.reserved_bytes:
        return None
    return Finding(
        id="profile_reserved",
        verdict=Verdict.POSSIBLE,
        title=f"PyTorch reserves {format_size(unused)} more on {memory.device} than was ever"
        " allocated in this trace",
        bytes=unused,
        evidence=(
            f"reserved {format_size(memory.reserved_bytes)}, allocated at most"
            f" {format_size(memory.allocated_bytes)}; earlier work may have needed it",
        ),
        fix="record the memory history: it shows whether these are gaps between allocations",
    )


def slower_findings(profile: Profile) -> Iterator[Finding]:
    """Yields what rises together: the time of a step and the memory at its peak."""
    memory = profile.memory
    if memory is None:
        return
    durations = [step.end_ns - step.start_ns for step in profile.steps]
    peaks = memory.step_peaks
    if len(durations) < _FEWEST_TO_COMPARE or len(peaks) != len(durations):
        return
    third = len(durations) // 3
    first, last = (statistics.median(part) for part in (durations[:third], durations[-third:]))
    if last < _LEAST_RISE * first or peaks[-1] <= peaks[0]:
        return
    numbers = range(0, len(durations), 1 + len(durations) // _MOST_COMPARED)
    compared = durations[:: numbers.step]
    agreements = (
        _agreement(numbers, compared),
        _agreement(peaks[:: numbers.step], compared),
    )
    if min(agreements) < _LEAST_AGREEMENT:
        return
    yield Finding(
        id="profile_slower",
        verdict=Verdict.LIKELY,
        title=f"steps take longer and longer as memory rises: {format_duration(int(first))} at"
        f" the beginning, {format_duration(int(last))} at the end",
        bytes=peaks[-1] - peaks[0],
        evidence=(
            f"their peaks on {memory.device} rise from {format_size(peaks[0])} to"
            f" {format_size(peaks[-1])} over {len(durations)} steps",
        ),
        fix="find what each step adds to: `vramlens leaks` on this trace; a list of tensors, a"
        " graph that grows, a cache that is searched",
    )


def _agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau of two columns; pairs that are equal in one of them count for neither."""
    products = [
        (first[later] - first[earlier]) * (second[later] - second[earlier])
        for earlier, later in combinations(range(len(first)), 2)
    ]
    agreeing = sum(product > 0 for product in products)
    opposed = sum(product < 0 for product in products)
    return (agreeing - opposed) / len(products)
