"""What else differs between two runs: versions, devices, settings, commands, steps, and the size
of the work.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vramlens.analyses.compare.compared_run import HISTORY_SHARE, Run
from vramlens.analyses.compare.diff_answer import SettingDifference
from vramlens.analyses.compare.file_alignment import file_name
from vramlens.analyses.compare.profile_differences import profile_differences
from vramlens.analyses.compare.scale import scale_differences
from vramlens.analyses.compare.work_sizes import work_sizes
from vramlens.analyses.finding import Place
from vramlens.units import counted, format_size

_DEFAULTS: Mapping[str, Any] = {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": ""}
# What the allocator's settings say of the recording and not of the run.
_NO_SETTINGS = {"last_allocator_settings"}


def differences(
    before: Run, after: Run, places: Mapping[Place, Place], files: Mapping[str, str]
) -> tuple[SettingDifference, ...]:
    """Everything else that is different, what explains most first.

    Args:
        places: by line in the run before, its place in the run after.
        files: those that have another name in the run after, by their name before.
    """
    profiled = profile_differences(before.view.trace, after.view.trace)
    return (
        *profiled,
        *scale_differences(before, after, places),
        *_stated(before, after),
        *_elsewhere(files),
    )


def _elsewhere(files: Mapping[str, str]) -> Iterator[SettingDifference]:
    for old, new in list(files.items())[:1]:
        more = f", and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else ""
        has_same_name = file_name(old) == file_name(new)
        where = "elsewhere" if has_same_name else "under a different name"
        yield SettingDifference(
            "files", old, new, f"the same file {where}: {old} before, {new} after{more}"
        )


def _stated(before: Run, after: Run) -> Iterator[SettingDifference]:
    """What the recordings say of themselves."""
    old, new = before.explanation.recording, after.explanation.recording
    yield from SettingDifference.between("torch", "PyTorch", old.torch, new.torch)
    yield from SettingDifference.between("gpu", "the GPU", old.device, new.device)
    yield from SettingDifference.between(
        "gpu_memory", "the GPU's memory", _size(before.gpu_bytes), _size(after.gpu_bytes)
    )
    yield from SettingDifference.between(
        "process_limit", "process limit", _process_limit(before), _process_limit(after)
    )
    yield from _settings(old.settings, new.settings)
    if not old.meta.is_empty and not new.meta.is_empty:
        yield from _command_difference(old.meta.command, new.meta.command)
        yield from SettingDifference.between("cuda", "CUDA", old.meta.cuda, new.meta.cuda)
        yield from SettingDifference.between(
            "driver", "the driver", old.meta.driver, new.meta.driver
        )
        for difference in SettingDifference.between(
            "ranks", "the number of ranks", _text(old.meta.world_size), _text(new.meta.world_size)
        ):
            yield replace(difference, is_of_work=True)
        if old.meta.module_marks != new.meta.module_marks:
            yield SettingDifference(
                "marks", None, None, "only one of the recordings contains module names"
            )
    yield from _steps(before, after)
    for name, run in (("before", before), ("after", after)):
        if run.explanation.recording.missing:
            first = run.explanation.recording.missing[0]
            yield SettingDifference(
                "missing", None, None, f"the recording {name} is incomplete: {first}"
            )


def _steps(before: Run, after: Run) -> Iterator[SettingDifference]:
    old, new = before.explanation.steps.count, after.explanation.steps.count
    if old == new:
        return
    words = f"{counted(old, 'step')} recorded before, {new:,} after"
    if not new:
        words = f"{counted(old, 'step')} recorded before; {_without_steps('later', after)}"
    elif not old:
        words = f"{_without_steps('earlier', before)}; {counted(new, 'step')} recorded after"
    yield SettingDifference("steps", str(old), str(new), words)


def _without_steps(name: str, run: Run) -> str:
    """Why a run's recording tells no steps apart."""
    if run.failure is not None and run.explanation.recording.meta.step == 0:
        return f"the {name} run failed before its first step ended"
    return f"the steps of the {name} run are unknown"


def _process_limit(run: Run) -> str | None:
    """What the process may reserve, in words; None where the recording does not say."""
    if run.failure is not None and run.failure.limit_bytes is not None:
        return format_size(run.failure.limit_bytes)
    facts = run.explanation.recording.meta.device(run.device)
    limit = facts.process_limit_bytes
    if limit is None:
        return None if facts.memory_fraction is None else "none"
    return format_size(limit)


def _command_difference(
    before: tuple[str, ...], after: tuple[str, ...]
) -> Iterator[SettingDifference]:
    """The commands, where they differ; in a size of the work, they are of different work."""
    is_of_work = work_sizes(before) != work_sizes(after)
    for difference in SettingDifference.between(
        "command", "the command", _command(before), _command(after)
    ):
        old, new = _differing(before, after), _differing(after, before)
        words = f"the command: {old} before, {new} after" if old and new else difference.words
        yield replace(difference, words=words, is_of_work=is_of_work)


def _differing(words: tuple[str, ...], counterpart: tuple[str, ...]) -> str:
    """The words of a command between those that it begins and ends with as another does; after the
    option that they belong to.
    """
    shorter = min(len(words), len(counterpart))
    first = next((i for i in range(shorter) if words[i] != counterpart[i]), shorter)
    last = next((i for i in range(shorter - first) if words[-1 - i] != counterpart[-1 - i]), 0)
    if first and words[first - 1].startswith("-"):
        first -= 1
    return shlex.join(words[first : len(words) - last])


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else format_size(size_bytes)


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _command(words: tuple[str, ...]) -> str | None:
    return shlex.join(words) or None


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[SettingDifference]:
    if not before or not after:
        return
    for key in sorted({*before, *after} - _NO_SETTINGS):
        old, new = before.get(key, _DEFAULTS.get(key)), after.get(key, _DEFAULTS.get(key))
        if old != new and key in before and key in after:
            words = (
                f"the allocator's {key}: {_setting_text(old)} before, {_setting_text(new)} after"
            )
            yield SettingDifference("settings", str(old), str(new), words)


def _setting_text(value: Any) -> str:
    """A setting's value; an environment variable that says nothing is not set."""
    return "unset" if value == "" else str(value)


def workload_words(before: Run, after: Run, others: Sequence[SettingDifference]) -> tuple[str, ...]:
    """How the work of the runs differs, one phrase each; none where it is the same.

    Args:
        others: what else is different between the runs.
    """
    words = (difference.words for difference in others if difference.is_of_work)
    return (*words, *_more_steps(before, after))


def _more_steps(before: Run, after: Run) -> Iterator[str]:
    """A phrase where only the steps that one run has more explain the peak."""
    old, new = before.explanation.steps.peak_bytes, after.explanation.steps.peak_bytes
    common = min(len(old), len(new))
    if not common or len(old) == len(new):
        return
    shorter = before if len(old) < len(new) else after
    if shorter.failure is not None:  # the failure ended it: that is not other work
        return
    # The last step of a recording may be cut: what it did not reach says nothing.
    both = common - 1
    if both < 1:
        return
    peaks = max(old[:both]), max(new[:both])
    is_same_so_far = abs(peaks[1] - peaks[0]) <= HISTORY_SHARE * max(peaks)
    is_same_in_all = abs(max(new) - max(old)) <= HISTORY_SHARE * max(max(old), max(new))
    if is_same_so_far and not is_same_in_all:
        yield (
            f"{counted(len(old), 'step')} before and {len(new):,} after; the first "
            f"{counted(both, 'step')} peak alike"
        )
