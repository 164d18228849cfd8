"""Whose code a class is from, also where its module has no file."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from vramlens.live.heap.objects import is_users_class


def class_of(module: str) -> type:
    return type("Made", (), {"__module__": module})


def test_what_c_code_adds_to_a_package_is_no_class_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "package._C._part", ModuleType("package._C._part"))
    assert not is_users_class(class_of("package._C._part"))
    assert not is_users_class(int)


def test_the_program_and_what_is_in_no_module_are_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Under `python -m pytest` the program is a file of pytest.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert is_users_class(class_of("__main__"))
    assert is_users_class(class_of("never.imported"))
    assert is_users_class(class_of(__name__))
