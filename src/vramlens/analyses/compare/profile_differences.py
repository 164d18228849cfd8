"""What differs between two traces of PyTorch's profiler beside their memory: how busy the devices
were, how long a step took, what each operator took, what stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.compare.diff_answer import SettingDifference
from vramlens.analyses.profile.explained_profile import Profile, explain_profile
from vramlens.analyses.profile.operators import own_times
from vramlens.trace import Trace
from vramlens.units import format_duration, format_size

_MOST_OPERATORS = 5
_LEAST_SHARE = 0.05
"""Of the time of all operators: what changed by less is not named."""


def profile_differences(before: Trace, after: Trace) -> tuple[SettingDifference, ...]:
    """The differences, none where one of them is not a profiler's trace."""
    if before.profile is None or after.profile is None:
        return ()
    first, second = explain_profile(before.profile), explain_profile(after.profile)
    return (
        *_busy(first, second),
        *_steps(first, second),
        *_kept(first, second),
        *_operators(first, second),
    )


def _busy(before: Profile, after: Profile) -> Iterator[SettingDifference]:
    if before.use is None or after.use is None:
        yield from SettingDifference.between(
            "cpu_busy", "CPU in operators", _cpu(before), _cpu(after)
        )
        return
    shares = [
        f"{100 * use.busy_ns / profile.wall_ns:.0f}% of the time"
        for profile, use in ((before, before.use), (after, after.use))
    ]
    yield from SettingDifference.between("gpu_busy", f"GPU {after.use.device} busy", *shares)


def _cpu(profile: Profile) -> str:
    return f"{100 * profile.cpu_use.busy_ns / profile.wall_ns:.0f}% of the time"


def _steps(before: Profile, after: Profile) -> Iterator[SettingDifference]:
    if before.steps and after.steps:
        medians = [format_duration(_median_step_ns(profile)) for profile in (before, after)]
        yield from SettingDifference.between("step_time", "A profiler step took", *medians)


def _median_step_ns(profile: Profile) -> int:
    lasted = sorted(step.end_ns - step.start_ns for step in profile.steps)
    return lasted[len(lasted) // 2]


def _kept(before: Profile, after: Profile) -> Iterator[SettingDifference]:
    if before.memory is not None and after.memory is not None:
        sizes = [
            format_size(sum(holder.bytes for holder in memory.kept))
            for memory in (before.memory, after.memory)
        ]
        yield from SettingDifference.between(
            "kept", "Not freed before the end of the trace", *sizes
        )


def _operators(before: Profile, after: Profile) -> Iterator[SettingDifference]:
    """Yields the operators whose own time changed most, on the GPU where there is one."""
    on_gpu = before.use is not None and after.use is not None
    first = own_times(before.operators, on_gpu=on_gpu)
    second = own_times(after.operators, on_gpu=on_gpu)
    changes = {name: second.get(name, 0) - first.get(name, 0) for name in {*first, *second}}
    least_ns = _LEAST_SHARE * max(sum(first.values()), sum(second.values()))
    where = "on the GPU" if on_gpu else "of CPU time"
    for name in sorted(changes, key=lambda name: (-abs(changes[name]), name))[:_MOST_OPERATORS]:
        if abs(changes[name]) < least_ns:
            return
        times = [format_duration(times.get(name, 0)) for times in (first, second)]
        yield from SettingDifference.between(
            f"operator:{name}", f"{name}, {where} by itself", *times
        )
