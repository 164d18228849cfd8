"""The docstring of each package is its table of contents, and docs/design.md names each room."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import vramlens

ROOT = Path(vramlens.__path__[0])
DESIGN = Path(__file__).parents[1] / "docs" / "design.md"
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py") if path.parent != ROOT)
ENTRY = re.compile(r"(\w+(?:, \w+)*): \S")


def name_of(package: Path) -> str:
    return package.relative_to(ROOT).as_posix()


def members(package: Path) -> list[str]:
    modules = [path.stem for path in package.glob("*.py") if not path.stem.startswith("__")]
    rooms = [path.parent.name for path in package.glob("*/__init__.py")]
    return sorted(modules + rooms)


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_names_each_of_its_modules_once(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    _title, *lines = docstring.splitlines()
    entries = filter(None, map(ENTRY.match, lines))
    names = [name for entry in entries for name in entry[1].split(", ")]
    assert sorted(names) == members(package)


def test_the_design_names_each_package_and_each_room() -> None:
    """``src/vramlens/live/`` is a package; ``heap/`` is a room of it."""
    page = DESIGN.read_text(encoding="utf-8")
    paths = [name_of(package) for package in PACKAGES]
    assert [path for path in paths if f"{path.split('/')[-1]}/`" not in page] == []
