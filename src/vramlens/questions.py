"""Questions to recordings as functions: what the verbs of the command line answer, for programs and
notebooks.

Each takes files, or recordings that ``vramlens.load`` opened, and returns an answer that prints
itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias, cast

from vramlens.argument_types import device_given, path_given, settings_given
from vramlens.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramlens.analyses.budget.budget import Check
    from vramlens.analyses.budget.budget_file import Budget
    from vramlens.analyses.budget.predicted_script import PredictedScript
    from vramlens.analyses.compare.compared_run import Run
    from vramlens.analyses.compare.diff_answer import Diff
    from vramlens.api import Progress, Recording
    from vramlens.ranks import Comparison
    from vramlens.trace import Trace
    from vramlens.view.page import Page

Opened: TypeAlias = "str | os.PathLike[str] | Recording"
"""A file's path, or a recording that is open already."""
Reading: TypeAlias = "Callable[[str], AbstractContextManager[Progress | None]]"
"""Given a title, a context with a function to call with the share that has been read."""


def _unwatched(_title: str) -> AbstractContextManager[None]:
    """Shows nobody how far it has read."""
    return nullcontext()


def diff(
    before: Opened | Sequence[Opened],
    after: Opened | Sequence[Opened],
    *,
    device: int | None = None,
) -> Diff:
    """What changed between two recordings: the failure, the growth, the peak, the lines.

    Args:
        before: a file or a recording; several of one program tell the noise. Or the folder of a
            job.
        after: the same, after the change.
        device: the device; by default the one with the highest requested peak.

    Raises:
        InputError: a file cannot be read, or holds no GPU memory.
        UsageError: a recording has no such device.
    """
    return compared(_several(before), _several(after), device_given(device))


def compared(
    before: Sequence[Opened],
    after: Sequence[Opened],
    device: int | None,
    reading: Reading = _unwatched,
) -> Diff:
    """What ``diff`` answers, for whoever shows how far it has read."""
    from vramlens.analyses.compare.run_diff import diff_runs

    sides = (*before, *after)
    if len(before) == len(after) == 1 and all(map(_is_folder, sides)):
        from vramlens.fleet.job_diff import diff_jobs

        old, new = (os.fspath(cast(str, folder)) for folder in sides)
        with reading("reading") as progress:
            return diff_jobs(old, new, device=device, progress=progress)
    return diff_runs(
        [_run(run, device, reading) for run in before],
        [_run(run, device, reading) for run in after],
    )


def check(
    recording: Opened,
    budget: str | os.PathLike[str] = "vram.toml",
    *,
    baseline: Opened | None = None,
    device: int | None = None,
) -> Check:
    """A recording held against a budget of peak, growth and retries: ``passed``, and what broke it.

    Args:
        recording: a file or a recording; or the folder of a job, of which the worst rank decides
            each limit.
        budget: the budget file; ``vramlens check FILE --update`` writes a first one.
        baseline: a recording that kept the budget: tells which lines rose since.
        device: the device; by default the one with the highest requested peak.

    Raises:
        InputError: a file cannot be read, or the budget has no limit.
    """
    from vramlens.analyses.budget.budget_file import read_budget_file

    path = os.fspath(path_given("budget", budget))
    try:
        limits = read_budget_file(path)
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if not limits.limits:
        raise InputError(f"{path}: [budget] has no limit in it")
    return checked(recording, limits, baseline, device_given(device))


def checked(
    recording: Opened,
    budget: Budget,
    baseline: Opened | None,
    device: int | None,
    reading: Reading = _unwatched,
    predicted: PredictedScript | None = None,
) -> Check:
    """What ``check`` answers, for whoever shows how far it has read.

    Args:
        predicted: the script, if the recording is its prediction.
    """
    if _is_folder(recording):
        from vramlens.fleet.job_budget import check_job

        baseline_folder = None if baseline is None else os.fspath(path_given("baseline", baseline))
        folder = os.fspath(cast(str, recording))
        with reading("checking") as progress:
            return check_job(folder, budget, baseline_folder, device=device, progress=progress)
    from vramlens.analyses.budget.budget import check_run

    baseline_run = None if baseline is None else _run(baseline, device, reading)
    return check_run(_run(recording, device, reading), budget, baseline_run, predicted)


def ranks(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Comparison:
    """How the ranks of a job differ in memory, why, and who failed first.

    Args:
        paths: a folder of the ranks' recordings and flight records, or the files; or a lake.

    Raises:
        InputError: there are none.
    """
    from vramlens.fleet import compare_files

    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return compare_files([path_given("paths", path) for path in named])


def view(
    recordings: Opened | Sequence[Opened],
    *,
    output: str | os.PathLike[str] | None = None,
    conf: str | Sequence[str] | None = None,
    sources: str | os.PathLike[str] | None = ".",
    device: int | None = None,
) -> Page:
    """The picture: a notebook shows it; ``.save("run.html")`` writes one file that needs nothing
    else.

    Args:
        recordings: a file or a recording; two are compared, more are shown side by side; a
            recording and a profiler trace of the same run become one.
        output: a file to write the page to, at once.
        conf: allocator settings: what would have been reserved under them is drawn, too.
        sources: where the program's files are: the lines around the recorded ones go into the
            page. None for no code in it.
        device: the device; by default all.

    Raises:
        InputError: a file cannot be read.
        UsageError: a recording has no such device, or PyTorch would refuse a setting.
        OSError: ``output`` cannot be written.
    """
    from vramlens.view.comparison import joined
    from vramlens.view.page import Choices, Page, data_of, one_file, title_of

    traces = joined([_opened(recording) for recording in _several(recordings)])
    if not traces:
        raise UsageError("view takes at least one recording")
    choices = Choices(
        device=device_given(device),
        confs=settings_given(conf),
        sources=None if sources is None else os.fspath(sources),
    )
    title = title_of(traces)
    page = Page(title, one_file(data_of(traces, choices), title))
    if output is not None:
        page.save(path_given("output", output))
    return page


def export(
    recording: Opened,
    to: str,
    output: str | os.PathLike[str] | None = None,
    *,
    at: str | None = None,
    device: int | None = None,
) -> str:
    """The path of a new file with a recording in another tool's format.

    Args:
        recording: a file or a recording.
        to: perfetto, chrome, speedscope, flamegraph, csv, parquet or tensorboard.
        output: the file, for tensorboard a folder; by default named after the source, in the
            current folder.
        at: for flamegraph and speedscope, the moment: "peak", "oom", "end" or an event's number.
        device: the device; by default all, or where the format has but one the fullest.

    Raises:
        InputError: the file cannot be read, or holds not what the format shows.
        UsageError: there is no such format, device or moment; or what the format needs is not
            installed.
        OSError: the file cannot be written.
    """
    from vramlens.export import FORMATS, default_name, export_recording
    from vramlens.whole_file import whole_file

    if to not in FORMATS:
        raise UsageError(f"{to!r} is not a format: {', '.join(FORMATS)}")
    trace = _opened(recording)
    target = default_name(trace.source, to) if output is None else os.fspath(output)
    chosen = device_given(device)
    if FORMATS[to].is_folder:
        export_recording(trace, to, target, at=at, device=chosen)
        return target
    with whole_file(target) as file:
        export_recording(trace, to, file, at=at, device=chosen)
    return target


def _is_folder(recording: Opened) -> bool:
    """Whether it is the folder of a job."""
    return isinstance(recording, str | os.PathLike) and os.path.isdir(recording)


def _several(recordings: Opened | Sequence[Opened]) -> list[Opened]:
    """One recording or several, as a list."""
    from vramlens.trace import Trace

    if isinstance(recordings, str | os.PathLike | Trace):
        return [recordings]
    return list(recordings)


def _opened(recording: Opened, reading: Reading = _unwatched) -> Trace:
    from vramlens.api import load
    from vramlens.trace import Trace

    if isinstance(recording, Trace):
        return recording
    with reading("reading") as progress:
        return load(recording, progress=progress)


def _run(recording: Opened, device: int | None, reading: Reading) -> Run:
    from vramlens.analyses.compare.compared_run import run_of

    return run_of(_opened(recording, reading), device)
