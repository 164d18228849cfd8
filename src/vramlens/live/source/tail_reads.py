"""Histories of which the program reads the last few entries, or none: whatever is older is kept for
nothing, also after what fills them has ended.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from vramlens.live.source.expressions import has_length_of, is_call_of, text_of
from vramlens.live.source.source_stores import Store
from vramlens.live.source.source_tree import tree_of
from vramlens.units import listed

_ADDS = ("append", "extend")
_TAKE_ALL_ATTRIBUTES = ("__dict__", "vars", "asdict", "astuple", "pickle")
_MOST_LINES = 3


def reads_of_end_only(store: Store) -> str:
    """``only its last entries are read (line 8): ...``, or ``nothing reads its entries``, of what a
    statement appends to; empty where its file may read others.
    """
    if store.method not in _ADDS or store.keys or store.name.endswith("()"):
        return ""
    return _reads_of_end_only(store.file, store.name, is_attribute=bool(store.base))


@lru_cache(maxsize=256)
def _reads_of_end_only(file: str, name: str, *, is_attribute: bool) -> str:
    """The same of a variable or an attribute; it is asked again at each look."""
    tree = tree_of(file)
    if tree is None or any(_is_taken_unseen(node, name) for node in ast.walk(tree)):
        return ""
    lines: set[int] = set()
    for mention in _mentions(tree, name, is_attribute=is_attribute):
        if mention.reads_end:
            lines.add(mention.line)
        elif not mention.reads_nothing:
            return ""
    if not lines:
        return "nothing reads its entries"
    places = listed(sorted(lines), _MOST_LINES)
    where = f"{'line' if len(lines) == 1 else 'lines'} {places}"
    return f"only its last entries are read ({where}): the rest is kept for nothing"


class _Mention:
    """One place of the source at which a list is named.

    Attributes:
        line: where.
    """

    def __init__(self, node: ast.Name | ast.Attribute, parents: dict[ast.AST, ast.AST]) -> None:
        self._node, self._parents = node, parents
        self._parent = parents[node]
        self.line = node.lineno

    @property
    def reads_nothing(self) -> bool:
        """Whether it is filled here, made, or asked whether or how much there is."""
        node, parent = self._node, self._parent
        if not isinstance(node.ctx, ast.Load):
            return isinstance(node.ctx, ast.Store)
        match parent:
            case ast.Attribute(attr=method):
                is_called = isinstance(self._parents[parent], ast.Call)
                return is_called and method in _ADDS
            case ast.Call():
                return is_call_of(parent, "len") or is_call_of(parent, "bool")
            case ast.If(test=asked) | ast.While(test=asked) | ast.IfExp(test=asked):
                return asked is node
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp():
                return not isinstance(self._parents[parent], (ast.Assign, ast.Return))
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                return True
        return False

    @property
    def reads_end(self) -> bool:
        """Whether an entry or a few are read here, counted from the end."""
        match self._parent:
            case ast.Subscript(value=whole, slice=key, ctx=ast.Load()) if whole is self._node:
                return self._is_from_end(key)
        return False

    def _is_from_end(self, key: ast.expr) -> bool:
        match key:
            case ast.Slice(lower=ast.UnaryOp(op=ast.USub(), operand=count), step=None):
                return not self._has_own_length(count)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                return True
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=counter)):
                return self._counts_few(counter)
            case ast.BinOp(left=length, op=ast.Sub(), right=ast.Constant()):
                return self._has_own_length(length)
        return False

    def _has_own_length(self, count: ast.AST) -> bool:
        """Whether an expression has ``len(x)`` of the list itself."""
        return has_length_of([count], text_of(self._node))

    def _counts_few(self, counter: str) -> bool:
        """Whether a variable goes through a ``range`` that is not as long as the list."""
        for loop in self._loops_around():
            if isinstance(loop.target, ast.Name) and loop.target.id == counter:
                return is_call_of(loop.iter, "range") and self._is_limited(loop.iter)
        return False

    def _loops_around(self) -> Iterator[Any]:
        """Yields the loops and comprehensions around it, the innermost first."""
        node: ast.AST = self._node
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, (ast.For, ast.AsyncFor)):
                yield node
            yield from getattr(node, "generators", ())

    def _is_limited(self, counted: ast.AST) -> bool:
        has_limit = any(is_call_of(node, "min") for node in ast.walk(counted))
        return has_limit or not self._has_own_length(counted)


def _mentions(tree: ast.Module, name: str, *, is_attribute: bool) -> Iterator[_Mention]:
    """Yields every place of a file that names a variable or an attribute."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in parents:
        match node:
            case ast.Attribute(attr=named) if is_attribute and named == name:
                yield _Mention(node, parents)
            case ast.Name(id=named) if not is_attribute and named == name:
                yield _Mention(node, parents)


def _is_taken_unseen(node: ast.AST, name: str) -> bool:
    """Whether attributes may be read without being named: ``getattr(x, "rows")``, ``vars(x)``."""
    match node:
        case ast.Constant(value=value):
            return bool(value == name)
        case ast.Name(id=named) | ast.Attribute(attr=named):
            return named in _TAKE_ALL_ATTRIBUTES
    return False
