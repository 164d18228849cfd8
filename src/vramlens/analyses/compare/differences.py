"""What else differs between two runs: versions, devices, settings, commands, steps, and the size
of the work.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramlens.analyses.compare.compared_run import HISTORY_SHARE, Run
from vramlens.analyses.compare.diff_answer import SettingDifference
from vramlens.analyses.compare.file_alignment import file_name
from vramlens.analyses.compare.profile_differences import profile_differences
from vramlens.analyses.compare.work_sizes import work_sizes
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff_answer import LineChange

_NEARLY = 0.02
_MOST_OF = 0.8
_FEWEST_LINES = 2
_DEFAULTS: Mapping[str, Any] = {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": ""}
# What the allocator's settings say of the recording and not of the run.
_NO_SETTINGS = {"last_allocator_settings"}


def differences(
    before: Run, after: Run, changed: Sequence[LineChange], files: Mapping[str, str]
) -> tuple[SettingDifference, ...]:
    """Everything else that is different, what explains most first.

    Args:
        files: those that have another name in the run after, by their name before.
    """
    profiled = profile_differences(before.view.trace, after.view.trace)
    return (
        *profiled,
        *_scale(before, after, changed),
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
        "process_limit", "process limit", _process_limit(before), _process_limit(after)
    )
    yield from _settings(old.settings, new.settings)
    if old.meta is not None and new.meta is not None:
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
    steps = before.explanation.steps.count, after.explanation.steps.count
    if steps[0] != steps[1]:
        words = f"{counted(steps[0], 'step')} recorded before, {steps[1]:,} after"
        yield SettingDifference("steps", str(steps[0]), str(steps[1]), words)
    for name, run in (("before", before), ("after", after)):
        if run.explanation.recording.missing:
            first = run.explanation.recording.missing[0]
            yield SettingDifference(
                "missing", None, None, f"the recording {name} is incomplete: {first}"
            )


def _process_limit(run: Run) -> str | None:
    """What the process may reserve, in words; None where the recording does not say."""
    failure, meta = run.failure, run.explanation.recording.meta
    if failure is not None and failure.limit_bytes is not None:
        return format_size(failure.limit_bytes)
    facts = None if meta is None else meta.devices.get(run.device)
    if facts is None:
        return None
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
        yield replace(difference, is_of_work=is_of_work)


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


def _factor(
    before: Run, changed: Sequence[LineChange], categories: tuple[str, ...]
) -> float | None:
    """What most of the bytes of these categories were multiplied by; None where there is no such
    factor.
    """
    changes = _changes_of(changed, categories)
    if len(changes) < _FEWEST_LINES:
        return None
    ratios = sorted((new / old, old) for old, new in changes)
    middle = ratios[len(ratios) // 2][0]
    alike_bytes = sum(old for ratio, old in ratios if abs(ratio / middle - 1) <= _NEARLY)
    total_bytes = _unchanged_bytes(before, changed, categories) + sum(old for old, _ in changes)
    is_factor = alike_bytes >= _MOST_OF * total_bytes and abs(middle - 1) > _NEARLY
    return middle if is_factor else None


def _changes_of(
    changed: Sequence[LineChange], categories: tuple[str, ...]
) -> list[tuple[int, int]]:
    """Bytes before and after, of the lines of these categories that both runs have."""
    return [
        (line.before_bytes, line.after_bytes)
        for line in changed
        if line.category in categories and line.before_bytes and line.after_bytes
    ]


def _unchanged_bytes(
    before: Run, changed: Sequence[LineChange], categories: tuple[str, ...]
) -> int:
    changed_places = {line.was or line.place for line in changed}
    return sum(
        line.bytes
        for line in before.lines.values()
        if line.category in categories and line.place not in changed_places
    )


def _is_due_to_failure(before: Run, after: Run, factor: float) -> bool:
    """Whether one run has less only because its failure cut it short."""
    return (before.failure is not None and factor > 1) or (after.failure is not None and factor < 1)


def _scale(before: Run, after: Run, changed: Sequence[LineChange]) -> Iterator[SettingDifference]:
    """One factor in all activations, or in all parameters too: another batch or input size, or
    a different dtype.
    """

    activations = _factor(before, changed, ("activations",))
    if activations is not None and _is_due_to_failure(before, after, activations):
        return
    weights = _factor(before, changed, ("parameters", "gradients", "optimizer_state"))
    if activations is not None and (weights is None or abs(weights / activations - 1) > _NEARLY):
        words = (
            f"nearly all activations are {activations:.3g}x as large: likely a different batch "
            "or input size"
        )
        may_be_dtype = round(activations, 2) in (0.5, 2.0)
        if may_be_dtype:
            words += ", or a different dtype"
        yield SettingDifference(
            "scale", None, f"{activations:.4g}", words, is_of_work=not may_be_dtype
        )
    elif weights is not None:
        parts = "parameters and activations" if activations is not None else "parameters"
        why = (
            "a different dtype"
            if round(weights, 2) in (0.25, 0.5, 2.0, 4.0)
            else "a different model size"
        )
        words = f"nearly all {parts} are {weights:.3g} times as large: likely {why}"
        yield SettingDifference("scale", None, f"{weights:.4g}", words)


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
