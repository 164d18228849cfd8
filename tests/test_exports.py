"""The package's face: exactly these names, the same objects whatever else is imported, and a
light import.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import vramlens

EXPORTS = [
    "AdaptiveBatchLoader",
    "BalancedBatchSampler",
    "InputError",
    "LeakError",
    "LeakWatch",
    "Monitor",
    "NotARecording",
    "Recording",
    "UnsafeInput",
    "UsageError",
    "VramlensError",
    "__version__",
    "check",
    "diff",
    "distributed_state",
    "explain",
    "export",
    "find_batch_size",
    "guard",
    "guard_trainer",
    "holders",
    "inject_oom",
    "install",
    "load",
    "memory",
    "no_leaks",
    "place",
    "plan",
    "predict",
    "profile",
    "ranks",
    "record",
    "release",
    "retry",
    "snapshot",
    "step",
    "strategies",
    "view",
    "who_holds",
]
SOURCE = Path(vramlens.__path__[0]).parent


def submodules() -> list[str]:
    paths = [path.relative_to(SOURCE).with_suffix("") for path in SOURCE.glob("vramlens/**/*.py")]
    return sorted(
        ".".join(path.parts) for path in paths if path.name not in ("__init__", "__main__")
    )


def test_exactly_these() -> None:
    assert vramlens.__all__ == EXPORTS


@pytest.mark.parametrize("name", EXPORTS)
def test_a_name_stays_what_it_is_when_all_is_imported(name: str) -> None:
    first = getattr(vramlens, name)
    for module in submodules():
        import_module(module)
    assert getattr(vramlens, name) is first
    assert callable(first) or isinstance(first, str)


def test_no_part_has_the_name_of_an_export() -> None:
    assert {
        module.rpartition(".")[2] for module in submodules() if module.count(".") == 1
    }.isdisjoint(EXPORTS)


@pytest.mark.parametrize("name", ["export", "ranks", "view"])
def test_a_package_with_the_name_of_a_function_is_that_function(name: str) -> None:
    function = getattr(import_module("vramlens.questions"), name)
    assert inspect.signature(getattr(vramlens, name)) == inspect.signature(function)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        vramlens.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import vramlens", ("numpy", "rich", "torch", "vramlens.api")),
        ("import vramlens.cli.main", ("numpy", "torch", "vramlens.api")),
        ("import vramlens; vramlens.load", ("rich", "torch")),
        ("import vramlens; vramlens.install", ("numpy", "rich", "torch")),
        ("import vramlens; vramlens.guard; vramlens.find_batch_size", ("numpy", "rich", "torch")),
        (
            "import vramlens; vramlens.install(); vramlens.step()",
            ("numpy", "rich", "torch", "multiprocessing"),
        ),
    ],
)
def test_an_import_brings_no_more_than_it_needs(statement: str, absent: tuple[str, ...]) -> None:
    program = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {statement}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "vramlens" in loaded
    assert set(absent).isdisjoint(loaded)


def test_errors_are_a_tree_with_exit_codes() -> None:
    assert issubclass(vramlens.UnsafeInput, vramlens.InputError)
    assert issubclass(vramlens.NotARecording, vramlens.InputError)
    assert issubclass(vramlens.InputError, vramlens.VramlensError)
    assert not issubclass(vramlens.UsageError, vramlens.InputError)
    found = {name: getattr(vramlens, name) for name in EXPORTS}
    errors = {
        name: each
        for name, each in found.items()
        if isinstance(each, type) and issubclass(each, Exception)
    }
    codes = {name: error.exit_code for name, error in errors.items()}
    assert codes == {
        "InputError": 3,
        "LeakError": 3,
        "NotARecording": 3,
        "UnsafeInput": 3,
        "UsageError": 2,
        "VramlensError": 3,
    }
