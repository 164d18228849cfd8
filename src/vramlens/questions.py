"""Questions to recordings as functions: what the verbs of the command line answer, for programs and
notebooks.

Each takes files, or recordings that ``vramlens.load`` opened, and returns an answer that prints
itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from vramlens.argument_types import device_given, path_given, texts_given
from vramlens.errors import InputError, UsageError

if TYPE_CHECKING:
    from vramlens.analyses.budget.budget import Check
    from vramlens.analyses.compare.compared_run import Run
    from vramlens.analyses.compare.diff_answer import Diff
    from vramlens.api import Recording
    from vramlens.ranks import Comparison
    from vramlens.trace import Trace
    from vramlens.view.page import Page

Opened: TypeAlias = "str | os.PathLike[str] | Recording"
"""A file's path, or a recording that is open already."""


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
    from vramlens.analyses.compare.run_diff import diff_runs

    chosen = device_given(device)
    folders = _folders(before, after)
    if folders is not None:
        from vramlens.fleet.job_diff import diff_jobs

        return diff_jobs(*folders, device=chosen)
    return diff_runs(
        [_run(run, chosen) for run in _several(before)],
        [_run(run, chosen) for run in _several(after)],
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
    from vramlens.analyses.budget.budget import check_run
    from vramlens.analyses.budget.budget_file import MOST_BYTES, read_budget

    path = os.fspath(path_given("budget", budget))
    try:
        with open(path, "rb") as file:
            limits = read_budget(file.read(MOST_BYTES + 1), path)
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if not limits.limits:
        raise InputError(f"{path}: [budget] has no limit in it")
    chosen = device_given(device)
    if isinstance(recording, str | os.PathLike) and os.path.isdir(recording):
        from vramlens.fleet.job_budget import check_job

        kept = None if baseline is None else os.fspath(path_given("baseline", baseline))
        return check_job(os.fspath(recording), limits, kept, device=chosen)
    baseline_run = None if baseline is None else _run(baseline, chosen)
    return check_run(_run(recording, chosen), limits, baseline_run)


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
    from vramlens.view.joined import joined
    from vramlens.view.page import Choices, Page, data_of, one_file, title_of

    traces = joined([_opened(recording) for recording in _several(recordings)])
    if not traces:
        raise UsageError("view takes at least one recording")
    choices = Choices(
        device=device_given(device),
        confs=texts_given("conf", conf, 'settings such as "expandable_segments:True"'),
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
        raise UsageError(f"{to!r} is no format: {', '.join(FORMATS)}")
    trace = _opened(recording)
    target = default_name(trace.source, to) if output is None else os.fspath(output)
    chosen = device_given(device)
    if FORMATS[to].is_folder:
        export_recording(trace, to, target, at=at, device=chosen)
        return target
    with whole_file(target) as file:
        export_recording(trace, to, file, at=at, device=chosen)
    return target


def _folders(before: object, after: object) -> tuple[str, str] | None:
    """The folders of a job before and after; None where they are not two folders."""
    if not isinstance(before, str | os.PathLike) or not isinstance(after, str | os.PathLike):
        return None
    folders = os.fspath(before), os.fspath(after)
    return folders if all(map(os.path.isdir, folders)) else None


def _several(recordings: Opened | Sequence[Opened]) -> list[Opened]:
    """One recording or several, as a list."""
    from vramlens.trace import Trace

    if isinstance(recordings, str | os.PathLike | Trace):
        return [recordings]
    return list(recordings)


def _opened(recording: Opened) -> Trace:
    from vramlens.api import load
    from vramlens.trace import Trace

    return recording if isinstance(recording, Trace) else load(recording)


def _run(recording: Opened, device: int | None) -> Run:
    from vramlens.analyses.compare.compared_run import run_of

    return run_of(_opened(recording), device)
