"""What the package says of itself is one thing, wherever it stands."""

from __future__ import annotations

import ast
import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

import vramlens

ROOT = Path(__file__).parents[1]


def test_the_version_has_one_home() -> None:
    stated = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert stated is not None
    assert stated[1] == vramlens.__version__
    assert "version =" not in (ROOT / "pyproject.toml").read_text().split("[project.optional")[0]


def test_the_installed_version_is_that_of_the_module() -> None:
    try:
        installed = metadata("vramlens")
    except PackageNotFoundError:
        pytest.skip("the source tree is used without being installed")
    assert installed["Version"] == vramlens.__version__


def test_types_are_shipped() -> None:
    assert any((Path(folder) / "py.typed").is_file() for folder in vramlens.__path__)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name
)
def test_workflows_and_forms_can_be_read(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_tests_can_be_collected_without_pytorch() -> None:
    """A test file skips itself before it imports PyTorch, unless its folder's conftest does."""
    left_out = {
        conftest.parent
        for conftest in (ROOT / "tests").rglob("conftest.py")
        if 'if find_spec("torch")' in conftest.read_text(encoding="utf-8")
    }
    faulty = [
        path.name
        for path in (ROOT / "tests").rglob("test_*.py")
        if left_out.isdisjoint(path.parents) and _imports_torch(path.read_text(encoding="utf-8"))
    ]
    assert faulty == []


def _imports_torch(source: str) -> bool:
    if not re.search(r"^(import|from) torch\b", source, re.MULTILINE):
        return False  # parsing every file would take seconds
    for statement in ast.parse(source).body:
        text = ast.unparse(statement)
        if "importorskip('torch" in text:
            return False
        if re.match(r"(import|from) torch\b", text):
            return True
    return False
