"""A class of leaks that is found in a process is read from its recording, and has a fix."""

from __future__ import annotations

import ast
import inspect

from vramlens.leak.fixes import FIXES
from vramlens.live.holder.leak_class import class_of
from vramlens.read.parts.storages import _CLASSES


def classes_of_rules() -> set[str]:
    """The classes that ``class_of`` gives: of each rule, and of what none applies to."""
    tree = ast.parse(inspect.getsource(class_of))
    pairs = [node.elts for node in ast.walk(tree) if isinstance(node, ast.Tuple)]
    rules = {pair[0].value for pair in pairs if isinstance(pair[0], ast.Constant)}
    return {*rules, "container"}


def test_a_recording_may_say_each_class_that_is_found() -> None:
    assert {"hook", "closure", "graph"} < classes_of_rules() <= _CLASSES


def test_each_class_has_a_fix() -> None:
    assert FIXES.keys() >= _CLASSES
