"""Where the program uses all entries of something, or whichever it draws, as against the last few."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache

from vramlens.ground.source_code import last_name
from vramlens.live.source.source_stores import Store
from vramlens.live.source.source_tree import tree_of

_LOOKS = frozenset(
    ("len", "print", "id", "type", "isinstance", "repr", "str", "bool", "getsizeof", "wait")
)
"""Functions that look at something without using what is in it; ``wait(jobs)`` takes no results."""
_PICKS = frozenset(("max", "min"))
"""Functions that use one of many."""
_COMBINES = frozenset(
    (
        *("stack", "cat", "concat", "concatenate", "vstack", "hstack", "dstack", "pad_sequence"),
        *("ConcatDataset", "ChainDataset"),
    )
)
"""Functions of PyTorch and NumPy that make one of many, and data sets of several."""
_DRAWS = frozenset(("sample", "choice", "choices"))


def uses_all(node: ast.AST, name: str, kind: type[ast.expr] = ast.Name) -> bool:
    """Whether a node hands a variable on, goes through it, or gives it back."""
    match node:
        case ast.Call(func=called) if last_name(called) in _LOOKS | _PICKS:
            return False
        case ast.Call(args=arguments):
            return _has_name(arguments, name, kind)
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.Return(value=value):
            return value is not None and _has_name([value], name, kind)
    return False


def goes_through_values(node: ast.AST, name: str) -> bool:
    """Whether a node is a loop over all values of a variable's dict: ``for x in lists.values()``."""
    match getattr(node, "iter", None):
        case ast.Call(func=ast.Attribute(value=table, attr="items" | "values")):
            return _has_name([table], name, ast.Name)
    return False


def combines_all(node: ast.AST, name: str, kind: type[ast.expr] = ast.Name) -> bool:
    """Whether a node makes one of all entries: ``cat(rows)``, ``zip(*self.columns[task])``."""
    match node:
        case ast.Call(func=called, args=[ast.Starred(value=rows)]) if last_name(called) == "zip":
            return _has_name([_without_key(rows)], name, kind)
        case ast.Call(func=called, args=[rows, *_]) if last_name(called) in _COMBINES:
            return _has_name([_without_key(rows)], name, kind)
    return False


def _without_key(expression: ast.expr) -> ast.expr:
    """``self.columns`` of ``self.columns[task]``; no part of a list."""
    match expression:
        case ast.Subscript(value=table, slice=ast.Name() | ast.Attribute()):
            return table
    return expression


def line_of(node: ast.AST) -> int:
    """The first line of a node; 0 of what has none."""
    place = node.iter if isinstance(node, ast.comprehension) else node
    return int(getattr(place, "lineno", 0))


def is_around(node: ast.AST, line: int) -> bool:
    """Whether a line is one of a node's."""
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)


def lines_that_combine(store: Store) -> tuple[int, ...]:
    """The lines of its file that make one tensor of all that a statement appends to a list:
    ``torch.stack(self.vectors)``.
    """
    return _of_same_list(store, _lines_that_combine(store.file, store.name, bool(store.base)))


def lines_that_draw(store: Store) -> tuple[int, ...]:
    """The lines of its file that take some of its entries, by chance or by numbers that they go
    through.
    """
    return _of_same_list(store, _lines_that_draw(store.file, store.name, bool(store.base)))


def lines_that_pick(store: Store) -> tuple[int, ...]:
    """The lines of its file that take an entry by a place that is computed: ``texts[best]``."""
    return _of_same_list(store, _lines_that_pick(store.file, store.name, bool(store.base)))


def _kind(*, is_attribute: bool) -> type[ast.expr]:
    return ast.Attribute if is_attribute else ast.Name


def _of_same_list(store: Store, lines: Sequence[int]) -> tuple[int, ...]:
    """Those lines that are in no other function, or class, which makes a list of that name for
    itself.
    """
    tree = tree_of(store.file) if lines else None
    if tree is None:
        return ()
    makers = (ast.ClassDef,) if store.base else (ast.FunctionDef, ast.AsyncFunctionDef)
    kind = _kind(is_attribute=bool(store.base))
    other_makers = [
        node
        for node in ast.walk(tree)
        if isinstance(node, makers)
        and not is_around(node, store.line)
        and _makes(node, store.name, kind)
    ]
    return tuple(line for line in lines if not any(is_around(node, line) for node in other_makers))


def _makes(maker: ast.stmt, name: str, kind: type[ast.expr]) -> bool:
    """Whether a function or class assigns something of a name; no ``global`` of it."""
    parts = list(ast.walk(maker))
    if any(isinstance(part, (ast.Global, ast.Nonlocal)) and name in part.names for part in parts):
        return False
    return any(
        isinstance(part, kind)
        and last_name(part) == name
        and isinstance(getattr(part, "ctx", None), ast.Store)
        for part in parts
    )


@lru_cache(maxsize=256)
def _lines_that_combine(file: str, name: str, is_attribute: bool) -> tuple[int, ...]:
    tree, kind = tree_of(file), _kind(is_attribute=is_attribute)
    nodes = () if tree is None else ast.walk(tree)
    return tuple(line_of(node) for node in nodes if _hands_to(node, _COMBINES, name, kind))


@lru_cache(maxsize=256)
def _lines_that_draw(file: str, name: str, is_attribute: bool) -> tuple[int, ...]:
    tree, kind = tree_of(file), _kind(is_attribute=is_attribute)
    lines: set[int] = set()
    for node in () if tree is None else ast.walk(tree):
        if _hands_to(node, _DRAWS, name, kind) or _is_drawn(node, name, kind):
            lines.add(line_of(node))
        lines.update(_lines_by_number(node, name, kind))
    return tuple(sorted(lines))


@lru_cache(maxsize=256)
def _lines_that_pick(file: str, name: str, is_attribute: bool) -> tuple[int, ...]:
    tree, kind = tree_of(file), _kind(is_attribute=is_attribute)
    nodes = () if tree is None else ast.walk(tree)
    return tuple(line_of(node) for node in nodes if _is_picked(node, name, kind))


def _is_picked(node: ast.AST, name: str, kind: type[ast.expr]) -> bool:
    match node:
        case ast.Subscript(value=whole, slice=ast.Name() | ast.Call(), ctx=ast.Load()):
            return _has_name([whole], name, kind)
    return False


def _hands_to(node: ast.AST, functions: frozenset[str], name: str, kind: type[ast.expr]) -> bool:
    """Whether a node calls one of some functions with a list, or with something of each entry."""
    match node:
        case ast.Call(func=called, args=arguments) if last_name(called) in functions:
            generators = [part for value in arguments for part in getattr(value, "generators", ())]
            return _has_name([*arguments, *(part.iter for part in generators)], name, kind)
    return False


def _is_drawn(node: ast.AST, name: str, kind: type[ast.expr]) -> bool:
    """``x[randrange(n)]``."""
    match node:
        case ast.Subscript(value=whole, slice=ast.Call(), ctx=ast.Load()):
            return _has_name([whole], name, kind)
    return False


def _lines_by_number(node: ast.AST, name: str, kind: type[ast.expr]) -> Iterator[int]:
    """Yields the lines of ``[x[i] for i in picked]``."""
    counters = _counters(node)
    for part in ast.walk(node) if counters else ():
        match part:
            case ast.Subscript(value=whole, slice=ast.Name(id=index), ctx=ast.Load()):
                if index in counters and _has_name([whole], name, kind):
                    yield part.lineno


def _counters(node: ast.AST) -> set[str]:
    """The variables that a loop or a comprehension goes through."""
    loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
    return {loop.target.id for loop in loops if isinstance(loop.target, ast.Name)}


def _has_name(expressions: Sequence[ast.expr], name: str, kind: type[ast.expr]) -> bool:
    return any(isinstance(part, kind) and last_name(part) == name for part in expressions)
