"""Data flows one way: no stage imports a later one; and modules stay of a size that can be read."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import vramlens

ROOT = Path(vramlens.__path__[0])
RANKS = {
    "errors": 0,
    "schema": 0,
    "ground": 0,
    "foreign_text": 1,
    "units": 1,
    "allowance": 1,
    "argument_types": 2,
    "_apart": 1,
    "_core": 1,
    "whole_file": 1,
    "_layout": 1,
    "_native": 2,
    "cards": 2,
    "leak": 2,
    "capture": 2,
    "trace": 3,
    "read": 4,
    "analyses": 5,
    "replay": 6,
    "prediction": 7,
    "live": 8,
    "monitor": 8,
    "ranks": 8,
    "recovery": 8,
    "report": 9,
    "api": 10,
    "view": 11,
    "export": 11,
    "fleet": 11,
    "questions": 12,
    "program": 12,
    "function_profile": 12,
    "attach": 13,
    "integrations": 13,
    "pytest_plugin": 13,
    "agents": 14,
    "cli": 15,
    "__main__": 16,
}
"""A stage may import those of lower rank, and itself."""
NARROWER = {
    "leak": {"ground", "foreign_text", "units"},  # said in the user's program: no NumPy
    "capture": {
        "ground",
        "_core",
        "errors",
        "foreign_text",
        "units",
        "whole_file",
    },  # runs in the user's program: no NumPy
    "trace": {"cards.card_room", "ground", "leak"},  # columns: nothing that judges, reads or prints
    "read": {
        "ground",
        "_layout",
        "_native",
        "allowance",
        "cards.card_room",
        "trace",
        "errors",
        "units",
    },
    "analyses": {"ground", "leak", "read.oom.oom_text", "trace", "errors", "units"},
    "replay": {
        "ground",
        "_layout",
        "_native",
        "analyses",
        "cards.card_room",
        "trace",
        "errors",
        "units",
    },
    "ranks": {"ground", "analyses", "trace", "errors", "units"},
    "monitor": {
        "ground",
        "argument_types",
        "capture",
        "errors",
        "foreign_text",
        "schema",
        "units",
    },
}
"""Stages of which not even all lower ones may be imported."""
LONG: dict[str, str] = {}
"""Modules of more than 500 lines, with the reason."""
COUNTERS = {
    "_memoryStats",
    "_cuda_memoryStats",
    "_cuda_hostMemoryStats",
    "_cuda_hasPrimaryContext",
    "_cuda_memorySnapshot",
    "_cuda_setMemoryMetadata",
    "_cuda_attach_out_of_memory_observer",
    "_record_memory_history",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "reset_peak_memory_stats",
}
"""PyTorch's counters and private memory functions: only ``capture/torch_api.py`` names them."""
NAMES_COUNTERS = {
    "capture/torch_api.py": "the place for them",
    "capture/doctor/": "asks in a child which of them this PyTorch has, and whether they work",
    "capture/memory/pytorch_memory.py": "NCCL's backends have a memory_stats of their own",
    "prediction/": "stands in for them: the names are what it provides",
    "live/": "reads them after each step, in microseconds, without an Allocator",
    "recovery/": "measures trial steps in a program that calls it, and resets the peak",
}
"""Modules, or folders, that may name them too, with the reason; none is to be added."""
MODULES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path) -> Iterator[str]:
    """What a module imports of the package, wherever in it, as names below ``vramlens``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (
                alias.name[9:] for alias in node.names if alias.name.startswith("vramlens.")
            )
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "vramlens":
                yield from (
                    alias.name for alias in node.names if not alias.name.startswith("__version")
                )
            elif node.module and node.module.startswith("vramlens."):
                inner = node.module[9:]
                for alias in node.names:
                    is_module = (ROOT / inner.replace(".", "/") / f"{alias.name}.py").exists()
                    yield f"{inner}.{alias.name}" if is_module else inner


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path)], ids=name_of)
def test_no_stage_imports_a_later_one(path: Path) -> None:
    stage = name_of(path).split(".")[0]
    for imported in imports(path):
        other = imported.split(".")[0]
        if other == stage:
            continue
        assert RANKS[other] < RANKS[stage], f"{stage} imports {imported}"
        if stage in NARROWER:
            allowed = NARROWER[stage]
            assert any(imported == name or imported.startswith(f"{name}.") for name in allowed), (
                imported
            )


def test_the_package_itself_imports_errors_and_the_interface() -> None:
    named = {name.split(".")[0] for name in imports(ROOT / "__init__.py")}
    assert named <= {
        "errors",
        "api",
        "program",
        "function_profile",
        "live",
        "monitor",
        "prediction",
        "questions",
        "recovery",
    }


def test_every_stage_has_its_place() -> None:
    assert {name_of(path).split(".")[0] for path in MODULES if name_of(path)} == set(RANKS)


def test_imports_are_found_where_they_are() -> None:
    assert "analyses.memory.heap" in set(imports(ROOT / "api.py"))
    assert "analyses.explanation" in set(
        imports(ROOT / "cli/verbs/reading/explain.py")
    )  # inside of a condition
    assert any(
        name.split(".")[0] == "api" for name in imports(ROOT / "cli/verbs/reading/explain.py")
    )


def test_modules_are_short() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in MODULES
    }
    assert {name for name, count in lines.items() if count > 500} <= set(LONG)
    assert max(lines.values()) < 650


def names_in(path: Path) -> Iterator[str]:
    """Attributes and texts of a module's code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_folder_hides_a_module() -> None:
    """Of ``lake.py`` and ``lake/`` Python imports the folder: nobody would run the module."""
    hidden = [path for path in ROOT.rglob("*.py") if path.with_suffix("").is_dir()]
    assert hidden == []


def test_one_module_names_pytorchs_counters() -> None:
    for path in MODULES:
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(tuple(NAMES_COUNTERS)):
            assert not COUNTERS & set(names_in(path)), place
    assert COUNTERS & set(names_in(ROOT / "capture/torch_api.py"))


@pytest.mark.parametrize("kind", ["module", "public class"])
def test_no_name_stands_for_two_ideas(kind: str) -> None:
    names = Counter(module_names() if kind == "module" else public_class_names())
    assert {name for name, count in names.items() if count > 1} == set()


def module_names() -> Iterator[str]:
    """The name of each module; ``story`` and ``json`` are one an answer."""
    for path in MODULES:
        if path.stem not in ("__init__", "__main__", "story", "json"):
            yield path.stem


def public_class_names() -> Iterator[str]:
    """The name of each class that a module defines for others. ``MemoryCallback`` is none: one
    integration each makes it when it is asked for.
    """
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def test_folders_are_small_enough_to_know() -> None:
    modules = Counter(path.parent for path in MODULES if path.stem != "__init__")
    assert {folder.name for folder, count in modules.items() if count > 16} == set()
