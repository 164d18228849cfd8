"""``pytest --vramlens``, in pytest's own test bed, on a GPU that is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy  # noqa: F401  # the test bed forgets what is imported in it, and NumPy cannot be imported twice
import pytest

import vramlens.analyses.attribution.attribution
import vramlens.capture.recording.ring_size
import vramlens.read.snapshot  # noqa: F401
from support import plugin_gpu
from support.installed import PYTHON_PATH
from support.recordings import event, snapshot
from vramlens.pytest_plugin import use

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent
PLUGIN = ("-p", "vramlens.pytest_plugin", "-p", "no:cacheprovider")
MIB = 2**20


@pytest.fixture
def bed(pytester, monkeypatch):
    """A folder with tests, and the fake GPU in this process."""
    monkeypatch.setattr(use, "find_gpu", use.find_gpu)  # put back when the test is over
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # an installed vramlens would bring it a second time
    for variable in (
        "CI",
        "BUILD_NUMBER",
    ):  # where these are set, pytest's summary tells each failure a second time, whole
        monkeypatch.delenv(variable, raising=False)
    pytester.makeconftest("from support.plugin_gpu import plug_in\nplug_in()\n")
    pytester.syspathinsert(TESTS)
    return pytester


def run(bed, *arguments: str, tests: str | None = None):
    if tests is not None:
        bed.makepyfile(
            test_it="import pytest\nfrom support.plugin_gpu import GPU\nMIB = 2**20\n" + tests
        )
    return bed.runpytest_inprocess(*PLUGIN, *arguments)


LIMITS = """
@pytest.mark.limit_gpu_memory("2 MiB")
def test_within():
    GPU.free(GPU.alloc(2 * MIB))
    GPU.free(GPU.alloc(2 * MIB))

@pytest.mark.limit_gpu_memory("2 MiB")
def test_over():
    a = GPU.alloc(MIB)
    b = GPU.alloc(2 * MIB)
    GPU.free(a); GPU.free(b)
"""


def test_a_limit_is_held_and_the_line_named(bed):
    done = run(bed, "--vramlens", tests=LIMITS)
    done.assert_outcomes(passed=1, failed=1)
    out = done.stdout.str()
    assert (
        "vramlens: 3.00 MiB of GPU memory at the peak, 1.00 MiB over limit_gpu_memory('2 MiB')"
        in out
    )
    lines = re.findall(r"^ +([0-9.]+ MiB)  \S*test_it\.py:(\d+) in test_over", out, re.MULTILINE)
    assert lines == [("2.00 MiB", "13"), ("1.00 MiB", "12")]
    assert re.search(r"3\.00 MiB  test_it\.py::test_over", out)  # the summary


def test_without_the_option_nothing_is_measured(bed):
    done = run(bed, tests=LIMITS)
    done.assert_outcomes(passed=2)
    assert "GPU memory" not in done.stdout.str()
    assert plugin_gpu.GPU.starts == 0


def test_a_test_counts_only_its_own(bed):
    done = run(
        bed,
        "--vramlens",
        tests="""
KEPT = []
@pytest.fixture(scope="module")
def model():
    return GPU.alloc(64 * MIB)

def test_leaves_much():
    KEPT.append(GPU.alloc(32 * MIB))

@pytest.mark.limit_gpu_memory("1 MiB")
def test_small(model):
    GPU.free(KEPT.pop())       # freeing what is older does not hide what is new
    GPU.free(GPU.alloc(MIB))

@pytest.mark.limit_gpu_memory("1 MiB")
def test_too_large_behind_a_free(model):
    GPU.free(model)
    GPU.free(GPU.alloc(2 * MIB))
""",
    )
    done.assert_outcomes(passed=2, failed=1)
    assert "2.00 MiB of GPU memory at the peak" in done.stdout.str()


LEAKS = """
CACHE, GROWS, RUNS = [], [], []

@pytest.mark.no_gpu_leaks
def test_clean():
    GPU.free(GPU.alloc(MIB))

@pytest.mark.no_gpu_leaks
def test_fills_a_cache_once():
    if not CACHE:
        CACHE.append(GPU.alloc(MIB))

@pytest.mark.no_gpu_leaks
def test_leaks():
    RUNS.append(1)
    GROWS.append(GPU.alloc(3 * MIB))

@pytest.mark.no_gpu_leaks(allow="3 MiB")
def test_leaks_as_much_as_it_may():
    GROWS.append(GPU.alloc(3 * MIB))

def test_ran_three_times():
    assert len(RUNS) == 3
"""


def test_a_leak_is_what_stays_in_every_run(bed):
    done = run(bed, "--vramlens", tests=LEAKS)
    done.assert_outcomes(passed=4, failed=1)
    out = done.stdout.str()
    assert "3.00 MiB of GPU memory remain after the test, in each of 3 runs" in out
    assert re.search(r"3\.00 MiB  \S*test_it\.py:\d+ in test_leaks", out)


def test_warm_up_runs_are_not_measured(bed):
    done = run(
        bed,
        "--vramlens",
        tests="""
CALLS = []
@pytest.mark.limit_gpu_memory("1 MiB", warmup=2)
def test_it():
    CALLS.append(1)
    GPU.free(GPU.alloc(64 * MIB if len(CALLS) < 3 else MIB))
def test_three():
    assert len(CALLS) == 3
""",
    )
    done.assert_outcomes(passed=2)


def test_a_test_that_fails_keeps_its_own_reason(bed):
    done = run(
        bed,
        "--vramlens",
        tests="""
@pytest.mark.limit_gpu_memory("1 MiB")
def test_it():
    GPU.alloc(8 * MIB)
    assert False, "my own reason"
def test_skips():
    pytest.skip("my own skip")
""",
    )
    done.assert_outcomes(failed=1, skipped=1)
    assert "my own reason" in done.stdout.str()
    assert "limit_gpu_memory" not in done.stdout.str().split("short test summary")[1]


def test_history_is_off_again_and_a_users_own_stays_on(bed):
    gpu = plugin_gpu.GPU
    run(
        bed, "--vramlens", tests="def test_a(): GPU.alloc(9)\ndef test_b(): pass\n"
    ).assert_outcomes(passed=2)
    assert (gpu.starts, gpu.stops, gpu.history) == (2, 2, False)
    done = run(
        bed,
        "--vramlens",
        tests="""
@pytest.fixture(scope="session", autouse=True)
def own_history():
    GPU.start_history(10)
    GPU.alloc(32 * MIB)
@pytest.mark.limit_gpu_memory("1 MiB")
def test_a(): GPU.alloc(MIB)
@pytest.mark.limit_gpu_memory("1 MiB")
def test_b(): GPU.alloc(MIB)
""",
    )
    done.assert_outcomes(passed=2)
    assert (gpu.starts, gpu.stops, gpu.history) == (1, 0, True)


def test_a_measurement_that_breaks_does_not_break_a_test(bed):
    done = run(
        bed,
        "--vramlens",
        tests="""
def broken(): raise ZeroDivisionError("inside")
def test_unmarked():
    GPU.snapshot = broken
@pytest.mark.limit_gpu_memory("1 MiB")
def test_marked():
    pass
def test_back():
    del GPU.snapshot
""",
    )
    done.assert_outcomes(passed=2, failed=1)
    assert "could not be measured" in done.stdout.str()
    assert "ZeroDivisionError: inside" in done.stdout.str()


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("limit_gpu_memory", 'write @pytest.mark.limit_gpu_memory("2 GB")'),
        ("limit_gpu_memory()", 'write @pytest.mark.limit_gpu_memory("2 GB")'),
        ('limit_gpu_memory("2 GX")', "'2 GX') is not a size"),
        ("limit_gpu_memory(1.5)", "1.5) is not a size"),
        ('limit_gpu_memory("1 MB", 3)', "write @pytest.mark.limit_gpu_memory"),
        ('limit_gpu_memory("1 MB", warmup=-1)', "use a number of runs from 0 to 100"),
        ('no_gpu_leaks("1 MB")', "write @pytest.mark.no_gpu_leaks"),
        ("no_gpu_leaks(runs=3)", "write @pytest.mark.no_gpu_leaks"),
    ],
)
def test_a_marker_that_says_nothing_is_refused(bed, marker, said):
    done = run(bed, "--vramlens", tests=f"@pytest.mark.{marker}\ndef test_it(): pass\n")
    assert done.ret != 0
    assert said in done.stdout.str() + done.stderr.str()


def test_a_refused_marker_is_told_in_one_line(bed):
    done = run(
        bed, "--vramlens", tests='@pytest.mark.limit_gpu_memory("2 bananas")\ndef test_it(): pass\n'
    )
    out = done.stdout.str()
    assert out.count("('2 bananas') is not a size") == 1
    assert "During handling" not in out
    assert "marks.py" not in out
    assert "raise " not in out
    assert "Traceback" not in out


def test_markers_are_declared(bed):
    done = run(bed, "--strict-markers", "--markers", tests=LIMITS)
    assert "limit_gpu_memory(size, warmup=0)" in done.stdout.str()
    run(bed, "--strict-markers").assert_outcomes(passed=2)


SIZES = "def test_a(): GPU.alloc({a} * MIB)\ndef test_b(): GPU.alloc({b} * MIB)\n"


def test_peaks_are_held_against_a_baseline(bed):
    done = run(bed, "--vramlens-fail-on-increase", tests=SIZES.format(a=10, b=20))
    done.assert_outcomes(passed=2)
    baseline = bed.path / "vramlens-tests.json"
    assert json.loads(baseline.read_text()) == {
        "schema": "vramlens/1",
        "tests": {"test_it.py::test_a": 10 * MIB, "test_it.py::test_b": 20 * MIB},
    }
    assert "vramlens-tests.json: written" in done.stdout.str()
    before = baseline.read_text()
    done = run(
        bed,
        "--vramlens-fail-on-increase",
        tests=SIZES.format(a=11, b=5) + "def test_new(): GPU.alloc(MIB)\n",
    )
    done.assert_outcomes(passed=2, failed=1)
    out = done.stdout.str()
    assert (
        "11.00 MiB of GPU memory at the peak, 1.00 MiB more than the 10.00 MiB in vramlens-tests.json"
        in out
    )
    assert "1 test not in " in out
    assert (
        baseline.read_text() == before
    )  # a run does not loosen, or tighten, what it is held against
    run(bed, "--vramlens-update-baseline").assert_outcomes(passed=3)
    assert json.loads(baseline.read_text())["tests"]["test_it.py::test_b"] == 5 * MIB
    run(bed, "--vramlens-fail-on-increase").assert_outcomes(passed=3)


def test_a_tolerance(bed):
    run(bed, "--vramlens-update-baseline", tests=SIZES.format(a=100, b=100)).assert_outcomes(
        passed=2
    )
    tests = SIZES.format(a=101, b=102)
    run(bed, "--vramlens-fail-on-increase", tests=tests).assert_outcomes(passed=1, failed=1)
    run(bed, "--vramlens-fail-on-increase", "--vramlens-tolerance", "2%").assert_outcomes(passed=2)
    run(bed, "--vramlens-fail-on-increase", "--vramlens-tolerance", "0").assert_outcomes(failed=2)
    run(bed, "--vramlens-fail-on-increase", "--vramlens-tolerance", "1MiB").assert_outcomes(
        passed=1, failed=1
    )


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema": "vramlens/1", "tests": {"a": "b"}}', "[" * 100_000]
)
def test_a_broken_baseline_is_refused_and_kept(bed, text):
    (bed.path / "vramlens-tests.json").write_text(text)
    done = run(bed, "--vramlens-fail-on-increase", tests=LIMITS)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "is not a baseline of pytest --vramlens" in done.stderr.str()
    assert (bed.path / "vramlens-tests.json").read_text() == text


def test_figures_are_properties_in_junit_files(bed):
    run(bed, "--vramlens", "--junitxml=out.xml", tests=SIZES.format(a=1, b=2))
    tree = ElementTree.parse(bed.path / "out.xml")
    found = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in tree.iter("testcase")
    }
    assert found["test_b"] == {
        "vramlens_peak_bytes": str(2 * MIB),
        "vramlens_kept_bytes": str(2 * MIB),
    }


def test_with_xdist_each_worker_measures_and_one_process_stores(bed):
    pytest.importorskip("xdist")
    bed.makepyfile(
        test_it="import pytest\nfrom support.plugin_gpu import GPU\n"
        "@pytest.mark.parametrize('n', range(6))\n"
        "def test_many(n): GPU.alloc((n + 1) * 2**20)\n"
    )
    arguments = [
        sys.executable,
        "-m",
        "pytest",
        *PLUGIN,
        "-p",
        "xdist",
        "-n2",
        "--vramlens-fail-on-increase",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{PYTHON_PATH}{os.pathsep}{TESTS}"}
    done = subprocess.run(
        arguments,
        cwd=bed.path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "6 passed" in done.stdout, done.stdout
    assert "6 tests measured" in done.stdout
    stored = json.loads((bed.path / "vramlens-tests.json").read_text())["tests"]
    assert sorted(stored.values()) == [(n + 1) * MIB for n in range(6)]


@pytest.fixture
def bed_without_gpu(bed, monkeypatch):
    bed.makeconftest("")
    monkeypatch.setattr(use, "find_gpu", lambda *, import_torch: None)
    return bed


def test_without_a_gpu_marked_tests_run_unmeasured_and_it_is_said(bed_without_gpu):
    tests = (
        LIMITS
        + "def test_plain(): pass\n@pytest.mark.no_gpu_leaks\ndef test_wrong(): assert False\n"
    )
    done = run(bed_without_gpu, "--vramlens", tests=tests)
    done.assert_outcomes(passed=3, failed=1)
    assert (
        "3 marked tests were NOT checked (no GPU, or no PyTorch). "
        "--vramlens-require-gpu makes this an error." in done.stdout.str()
    )


def test_a_run_that_requires_a_gpu_fails_without_one(bed_without_gpu):
    done = run(bed_without_gpu, "--vramlens-require-gpu", tests=LIMITS + "def test_plain(): pass\n")
    done.assert_outcomes(passed=1, errors=2)
    assert "no GPU (or no PyTorch) to measure on (--vramlens-require-gpu)" in done.stdout.str()
    plain = run(bed_without_gpu, "--vramlens-require-gpu", tests="def test_plain(): pass\n")
    assert plain.ret == pytest.ExitCode.TESTS_FAILED
    assert "the run fails because of --vramlens-require-gpu" in plain.stdout.str()


def test_with_a_gpu_nothing_else_is_required(bed):
    assert run(bed, "--vramlens-require-gpu", tests="def test_a(): GPU.alloc(9)\n").ret == 0


OWN_OPTION = """
def pytest_addoption(parser):
    parser.addoption("--vramlens", default="none", help="the project's own")

def pytest_configure(config):
    assert config.getoption("--vramlens") == "theirs"
    assert config.option.vramlens == "theirs"
"""


def test_an_option_of_the_projects_own_with_that_name_stays(bed):
    bed.makeconftest(f"from support.plugin_gpu import plug_in\nplug_in()\n{OWN_OPTION}")
    done = run(bed, "--vramlens=theirs", tests=LIMITS)
    done.assert_outcomes(passed=2)
    done = run(bed, "--vramlens=theirs", "--vramlens-measure", tests=LIMITS)
    done.assert_outcomes(passed=1, failed=1)


def test_a_conftest_that_names_the_plugin_has_the_option(bed):
    bed.makeconftest(
        "pytest_plugins = ['vramlens.pytest_plugin']\nfrom support.plugin_gpu import plug_in\nplug_in()\n"
    )
    bed.makepyfile(
        test_it="import pytest\nfrom support.plugin_gpu import GPU\nMIB = 2**20\n" + LIMITS
    )
    bed.runpytest_inprocess("-p", "no:cacheprovider", "--vramlens").assert_outcomes(
        passed=1, failed=1
    )


@pytest.mark.parametrize("module", ["vramlens.pytest_plugin", "vramlens.pytest_plugin.measuring"])
def test_loading_the_plugin_costs_nothing(module):
    program = (
        f"import sys; sys.path.insert(0, {PYTHON_PATH!r}); import pytest; before = set(sys.modules);"
        f" import {module}; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {"numpy", "torch", "rich"}.isdisjoint(done.stdout.split())


REAL = """
import gc, pytest, torch
KEPT = []

@pytest.mark.limit_gpu_memory("64 MiB")
def test_within():
    torch.ones(12 * 2**20, device="cuda").mul_(2).sum().item()

@pytest.mark.limit_gpu_memory("64 MiB")
def test_over():
    x = torch.ones(12 * 2**20, device="cuda")
    y = x * 2

@pytest.mark.no_gpu_leaks
def test_multiplies_and_leaves_a_workspace():
    a = torch.randn(512, 512, device="cuda")
    (a @ a).sum().item()

@pytest.mark.no_gpu_leaks
def test_garbage_in_a_cycle_is_no_leak():
    cycle = [torch.ones(2**20, device="cuda")]
    cycle.append(cycle)

@pytest.mark.no_gpu_leaks
def test_leaks():
    KEPT.append(torch.ones(2**20, device="cuda"))

def test_peak_counters_are_untouched():
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    x = torch.ones(2**20, device="cuda")
    assert torch.cuda.max_memory_allocated() == before + 4 * 2**20
"""


@pytest.mark.gpu
def test_on_a_real_gpu(tmp_path):
    """By hand: python -m pytest -m gpu tests/test_pytest_plugin.py."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    (tmp_path / "test_real.py").write_text(REAL)
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    arguments = [sys.executable, "-m", "pytest", *PLUGIN, "--vramlens", "-v"]
    done = subprocess.run(
        arguments,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert "2 failed, 4 passed" in done.stdout
    assert (
        "96.00 MiB of GPU memory at the peak, 32.00 MiB over limit_gpu_memory('64 MiB')"
        in done.stdout
    )
    assert "4.00 MiB of GPU memory remain after the test, in each of 3 runs" in done.stdout
    assert re.search(r"4\.00 MiB  \S*test_real\.py:\d+ in test_leaks", done.stdout)


def test_what_stays_on_a_second_device_counts_too():
    """The peak is the first device's, the leak the second's."""
    first = [event("alloc", 2**30, 64 * MIB), event("free_requested", 2**30, 64 * MIB)]
    first.append(event("free_completed", 2**30, 64 * MIB))
    second = [event("alloc", 2**31, 8 * MIB)]
    used = use._use_of(snapshot(first, []) | {"device_traces": [first, second]}, 0)
    assert (used.peak_bytes, used.kept_bytes) == (64 * MIB, 8 * MIB)
    assert [line.bytes for line in used.kept_lines] == [8 * MIB]


def test_the_largest_lines_are_listed_and_the_rest_counted():
    lines = tuple(use.MeasuredLine(f"train.py:{number}", (9 - number) * MIB) for number in range(6))
    text = use.described(lines).splitlines()
    assert text[0].split() == ["9.00", "MiB", "train.py:0"]
    assert text[-1].strip() == "4.00 MiB  1 more line"
