"""Measuring: what ``pytest --vramlens`` does around each test, and at the end of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest

from vramlens.foreign_text import text_of, visible
from vramlens.pytest_plugin import use as measured
from vramlens.pytest_plugin.baseline import NAME, read_baseline, tolerance, write_baseline
from vramlens.pytest_plugin.marks import LIMIT, Marks, marks_of
from vramlens.pytest_plugin.use import MeasuredTest, TestUse, described
from vramlens.units import counted, format_size

_PEAK, _KEPT, _UNKNOWN = "vramlens_peak_bytes", "vramlens_kept_bytes", "vramlens_not_in_baseline"
_UNMEASURED = "vramlens_unmeasured"
_NO_GPU = "no GPU (or no PyTorch) to measure on"
_SHOWN = 5
_FURTHER_RUNS = 2


class Measuring:
    """Measures the tests of one process; with xdist, the controller only collects and stores."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        self._config = config
        self._path = option.vramlens_baseline or os.path.join(str(config.rootpath), NAME)
        self._compares, self._updates = (
            option.vramlens_fail_on_increase,
            option.vramlens_update_baseline,
        )
        self._allowed = tolerance(option.vramlens_tolerance)
        self._baseline = read_baseline(self._path) if self._compares or self._updates else None
        self._gpu: Any = None
        self._looked = False
        self._peaks: dict[str, int] = {}
        self._unknown = self._unmeasured = 0
        self._needs_gpu: bool = option.vramlens_require_gpu
        self._written = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Notes a marked test that cannot be measured, or fails it; refuses a marker that says
        nothing.
        """
        marks = _held_marks(item)
        if marks and self._find(import_torch=True) is None:
            if self._needs_gpu:
                _fail(f"{_NO_GPU} (--vramlens-require-gpu)")
            item.user_properties.append((_UNMEASURED, True))

    def _find(self, *, import_torch: bool = False) -> Any:
        """The GPU; None without one. Looked for until PyTorch is there."""
        if not self._looked:
            self._gpu = measured.find_gpu(import_torch=import_torch)
            self._looked = import_torch or "torch" in sys.modules
        return self._gpu

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measures the call, not the fixtures: what those hold may be there for other tests too."""
        marks = marks_of(item)
        if self._find() is None:
            return (yield)
        for _ in range(marks.warmup):
            item.runtest()
        measuring = self._begin(item)
        try:
            outcome = yield
        except BaseException:
            self._end(item, measuring)
            raise
        use = self._end(item, measuring)
        if use is not None:
            self._judge(item, marks, use)
        if marks and (use is None or not use.is_whole):  # what cannot be told does not pass
            _fail("the test could not be measured, so its limit may be exceeded (see the report)")
        return outcome

    def _begin(self, item: pytest.Item) -> Any:
        """A measurement; None where it fails, which is no reason for a test not to run."""
        try:
            measurement = MeasuredTest(self._gpu)
            measurement.begin()
        except Exception as error:
            item.add_report_section(
                "call", "vramlens", f"not measured: {type(error).__name__}: {error}"
            )
            return None
        return measurement

    def _end(self, item: pytest.Item, measurement: Any) -> TestUse | None:
        """The use of the test, noted as its properties: JUnit files show them, xdist brings them
        to the controller.
        """
        if measurement is None:
            return None
        try:
            use: TestUse = measurement.end(collect=marks_of(item).allowed is not None)
        except Exception as error:
            item.add_report_section(
                "call", "vramlens", f"not measured: {type(error).__name__}: {error}"
            )
            return None
        if not use.is_whole:
            item.add_report_section(
                "call",
                "vramlens",
                "there were too many events to keep all of them: these numbers are lower bounds",
            )
        item.user_properties[:] = [
            name_and_figure
            for name_and_figure in item.user_properties
            if name_and_figure[0] not in (_PEAK, _KEPT)
        ]
        item.user_properties += [(_PEAK, use.peak_bytes), (_KEPT, use.kept_bytes)]
        return use

    def _judge(self, item: pytest.Item, marks: Marks, use: TestUse) -> None:
        if marks.limit is not None and use.peak_bytes > marks.limit:
            over = format_size(use.peak_bytes - marks.limit)
            _fail(
                f"{format_size(use.peak_bytes)} of GPU memory at the peak, {over} over"
                f" {LIMIT}({marks.limit_text!r})",
                described(use.peak_lines),
            )
        if marks.allowed is not None and use.kept_bytes > marks.allowed:
            self._judge_leak(item, marks.allowed, use)
        if not self._compares:
            return
        baseline_bytes = (self._baseline or {}).get(item.nodeid)
        if baseline_bytes is None:
            item.user_properties.append((_UNKNOWN, True))
        elif use.peak_bytes > baseline_bytes + self._allowed(baseline_bytes):
            _fail(
                f"{format_size(use.peak_bytes)} of GPU memory at the peak,"
                f" {format_size(use.peak_bytes - baseline_bytes)} more"
                f" than the {format_size(baseline_bytes)} in {os.path.basename(self._path)}",
                described(use.peak_lines),
                "if this is intended: pytest --vramlens-update-baseline",
            )

    def _judge_leak(self, item: pytest.Item, allowed: int, use: TestUse) -> None:
        """A leak leaves something behind every time; what only the first run leaves are caches
        that filled.
        """
        for _ in range(_FURTHER_RUNS):
            measuring = self._begin(item)
            try:
                item.runtest()
            finally:
                again = self._end(item, measuring)
            if again is None or again.kept_bytes <= allowed:
                return
            use = again
        _fail(
            f"{format_size(use.kept_bytes)} of GPU memory remain after the test, in each of "
            f"{_FURTHER_RUNS + 1} runs",
            described(use.kept_lines),
            "to find what keeps it, put the test body into with vramlens.no_leaks(): ...",
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the figures; with xdist this is the controller, which gets the reports of all
        workers.
        """
        if report.when != "call":
            return
        properties = dict(report.user_properties)
        if isinstance(peak := properties.get(_PEAK), int):
            self._peaks[report.nodeid] = peak
        self._unknown += _UNKNOWN in properties
        self._unmeasured += _UNMEASURED in properties

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Stores the peaks, in one process only; fails a run that needs a GPU and has none."""
        is_required = self._needs_gpu and not _is_distributed(self._config)
        if is_required and self._find(import_torch=True) is None:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if self._peaks and not hasattr(session.config, "workerinput"):
            self._store_peaks()

    def _store_peaks(self) -> None:
        is_first = self._compares and not os.path.exists(self._path)
        if self._updates or is_first:
            write_baseline(self._path, {**(self._baseline or {}), **self._peaks})
            self._written = "written" if is_first else "updated"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says which tests use most."""
        write = terminalreporter.write_line
        if not self._peaks:
            if self._unmeasured or (self._find() is None and not _is_distributed(self._config)):
                terminalreporter.section("vramlens", sep="-")
                write(self._without_gpu())
            return
        terminalreporter.section("vramlens: GPU memory of tests", sep="-")
        ranked = sorted(self._peaks.items(), key=lambda item: (-item[1], item[0]))
        write(f"{counted(len(ranked), 'test')} measured; the highest peaks:")
        for name, peak in ranked[:_SHOWN]:
            write(f"  {format_size(peak):>12}  {visible(name)}")
        if self._written:
            write(f"{self._path}: {self._written}")
        elif self._unknown:
            write(
                f"{counted(self._unknown, 'test')} not in {self._path}:"
                " --vramlens-update-baseline adds them"
            )

    def _without_gpu(self) -> str:
        """What became of the marked tests."""
        if self._needs_gpu:
            return f"{_NO_GPU}: the run fails because of --vramlens-require-gpu"
        if not self._unmeasured:
            return f"{_NO_GPU}: nothing was measured"
        tests = counted(self._unmeasured, "marked test was", "marked tests were")
        return (
            f"{tests} NOT checked (no GPU, or no PyTorch). "
            "--vramlens-require-gpu makes this an error."
        )


def _is_distributed(config: pytest.Config) -> bool:
    """True if the tests run in xdist's workers, and this process runs none."""
    return bool(getattr(config.option, "numprocesses", None)) and not hasattr(config, "workerinput")


def _held_marks(item: pytest.Item) -> Marks:
    """The limits of the test; a marker that says nothing fails it in one line."""
    try:
        return marks_of(item)
    except pytest.UsageError as error:
        refusal = f"vramlens: {error}"
    # Not inside: pytest would print both exceptions, which say the same.
    pytest.fail(refusal, pytrace=False)


def _fail(title: str, *rest: str) -> None:
    lines = [line for text in rest if text for line in text.split("\n")]
    pytest.fail(text_of([f"vramlens: {title}", *lines]), pytrace=False)
