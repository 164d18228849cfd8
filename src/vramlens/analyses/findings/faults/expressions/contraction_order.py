"""Contractions in an order that makes a tensor far larger than what goes in: of three factors the wrong two meet
first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.faults.expressions.einsum_order import other_order
from vramlens.analyses.findings.faults.expressions.expression_parts import (
    assigned_name,
    equation_of,
    operands,
    same_text,
    value_of,
    within,
    without_views,
)
from vramlens.analyses.findings.usage import rows_of_lines
from vramlens.analyses.scene import LINES_ABOVE, Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.source_code import called
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_CONTRACTS = frozenset({"tensordot", "einsum", "matmul", "mm", "bmm"})
_MATRIX_PRODUCTS = frozenset({"matmul", "mm", "bmm", "@"})
_FACTORS = 2
_TIMES = 8
"""As large as all that was there, each: what a product of two needs no other order for is smaller."""
_LEAST_SHARE = 0.5
"""Of what is in use with the request."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """A product of two that another product goes on with.

    Attributes:
        first: the product that makes the large tensor.
        second: the one that it goes into.
        large: what stands for the large tensor there.
        rows: the large tensors in use, of each turn of a loop; none where it is what was asked for.
        size_bytes, operand_bytes: of one, and the most that what it was made of can have.
        place: of its line.
        is_turned: whether its line gives a view of it, in another order.
    """

    first: ast.expr
    second: ast.expr
    large: ast.expr
    rows: NDArray[np.int64]
    size_bytes: int
    operand_bytes: int
    place: Place
    is_turned: bool = False


@after_failure
def contraction_order(scene: Scene) -> Iterator[Finding]:
    """The product that is many times as large as its factors, where another product takes it in."""
    request = scene.ending_request
    chain = next(_chains(scene), None)
    if chain is None:
        return
    in_use_bytes = scene.bytes_of(chain.rows)
    size_bytes = in_use_bytes + request.size_bytes
    if size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    more = f", and requests {format_size(request.size_bytes)}" if len(chain.rows) else ""
    turns = f"; {len(chain.rows)} as large are in use" if len(chain.rows) > 1 else ""
    yield Finding(
        id="contraction_order",
        verdict=Verdict.LIKELY,
        title=f"{shown(ast.unparse(chain.first))} makes {format_size(chain.size_bytes)} of factors"
        f" of at most {format_size(chain.operand_bytes)}, before the next factor makes it smaller",
        bytes=size_bytes,
        place=chain.place,
        evidence=(f"{shown(ast.unparse(chain.second))} takes the large one in{more}{turns}",),
        fix=f"if nothing else uses it, contract in another order: {_other_order(chain)}; or go"
        " over one index of the result, and contract a slice at a time; torch.einsum of all"
        " factors finds such an order where opt_einsum is installed (up to"
        f" {format_size(size_bytes)} less)",
        extent=scene.extent(chain.rows),
    )


def _other_order(chain: _Chain) -> str:
    """Which factors to take first."""
    return _einsums(chain) or _in_words(chain)


def _einsums(chain: _Chain) -> str:
    """The two equations in another order; "" where the program has no two of letters, or there is no such order, or
    views turn a factor: then the letters are those of the view.
    """
    pair, whole = equation_of(chain.first), equation_of(chain.second)
    factors, later_factors = factors_of(chain.first), factors_of(chain.second)
    is_turned = any(
        not same_text(factor, without_views(factor)) for factor in (*factors, *later_factors)
    )
    if is_turned or chain.is_turned:
        return ""
    first, second = factors
    pair_stands_first = same_text(later_factors[0], chain.large)
    order = other_order(pair, whole, pair_stands_first=pair_stands_first)
    if order is None:
        return ""
    new = ast.unparse(later_factors[1 if pair_stands_first else 0])
    near, far = (first, second) if order.takes_left else (second, first)
    return (
        f'part = torch.einsum("{order.first}", {new}, {ast.unparse(near)}), then'
        f' torch.einsum("{order.second}", part, {ast.unparse(far)})'
    )


def _in_words(chain: _Chain) -> str:
    factors = [ast.unparse(without_views(node)) for node in factors_of(chain.first)]
    small = [
        node for node in factors_of(chain.second) if not same_text(without_views(node), chain.large)
    ]
    new = shown(ast.unparse(without_views(small[0]))) if small else "the next factor"
    first, second = shown(factors[0]), shown(factors[-1])
    if first == second:
        return f"{new} with one {first} first, and the result with the other"
    return f"{new} first with that of {first} and {second} that it shares an index with, and the result with the other"


def _chains(scene: Scene) -> Iterator[_Chain]:
    """The large tensor in use that the failing product takes in, the one that a function gave it, or the large one
    that was asked for.
    """
    place, failing = scene.failed_place, value_of(scene.ending_expression)
    if place is None or failing is None or not _is_contraction(failing):
        return
    yield from _taken_in(scene, place, failing)
    yield from _from_function(scene, place, failing)
    yield from _asked_for(scene, place, failing)


def _taken_in(scene: Scene, place: Place, failing: ast.expr) -> Iterator[_Chain]:
    """The largest tensor, if a line shortly before made it of small ones, and the failing product requests no more."""
    request, allocations, rows = (
        scene.ending_request,
        scene.device.allocations,
        scene.advice_rows,
    )
    row = allocations.largest_of(rows) if len(rows) else -1
    maker = scene.view.place_of_block(row) if row >= 0 else None
    if maker is None or not _is_shortly_before(maker, place):
        return
    first, large = _product_of(scene, maker, place, failing)
    size_bytes, born = int(allocations.requested_bytes[row]), int(allocations.born[row])
    if first is None or large is None or born < 0 or request.size_bytes > size_bytes:
        return
    operand_bytes = _largest_beside(scene, born - 1)
    if size_bytes >= _TIMES * operand_bytes:
        is_turned = _is_turned(scene, maker, first)
        large_rows = np.array([row])
        yield _Chain(first, failing, large, large_rows, size_bytes, operand_bytes, maker, is_turned)


def _from_function(scene: Scene, place: Place, failing: ast.expr) -> Iterator[_Chain]:
    """The products that a function returns to the failing one, in a loop that keeps all of them for its backward
    pass.
    """
    request, allocations, rows = scene.ending_request, scene.device.allocations, scene.advice_rows
    for large in map(without_views, factors_of(failing)):
        maker, first = _returned_product(scene, place, called(large))
        if maker is None or first is None:
            continue
        sizes, made_rows = allocations.requested_bytes, rows_of_lines(scene, {maker})
        size_bytes = int(sizes[made_rows].max(initial=0))
        # The failing product copies what it takes in, and a graph keeps that.
        large_rows = np.union1d(made_rows, rows_of_lines(scene, {place}))
        large_rows = np.asarray(large_rows[sizes[large_rows] == size_bytes])
        beside_rows = np.setdiff1d(rows, large_rows)
        operand_bytes = int(sizes[beside_rows].max(initial=1))
        if size_bytes >= max(request.size_bytes, _TIMES * operand_bytes):
            is_turned = _is_turned(scene, maker, first)
            yield _Chain(
                first, failing, large, large_rows, size_bytes, operand_bytes, maker, is_turned
            )


def _is_turned(scene: Scene, maker: Place, product: ast.expr) -> bool:
    """Whether a line gives a view of the product that it makes."""
    value = value_of(scene.source_of(maker))
    return value is None or not same_text(value, product)


def _returned_product(
    scene: Scene, place: Place, function: str
) -> tuple[Place | None, ast.expr | None]:
    """The line of a function of the same file that returns a product of two, and that; None without one."""
    lines = {line.place for line in scene.advice_heap.by_line}
    for maker in lines:
        text = scene.source_of(maker)
        if (maker.file, maker.function) != (place.file, function) or not text.startswith("return "):
            continue
        product = value_of(text)
        if product is not None and _is_unlike(without_views(product)):
            return maker, without_views(product)
    return None, None


def _is_shortly_before(maker: Place, place: Place) -> bool:
    """Whether a line stands above another of its function, so near that the text between them is recorded."""
    is_of_function = (maker.file, maker.function) == (place.file, place.function)
    return is_of_function and 0 < place.line - maker.line <= LINES_ABOVE


def _product_of(
    scene: Scene, maker: Place, place: Place, failing: ast.expr
) -> tuple[ast.expr | None, ast.expr | None]:
    """The product of a line, and what stands for it in the failing one; None where it is none, or another by then."""
    text = scene.source_of(maker)
    product, name = value_of(text), assigned_name(text)
    factors = map(without_views, factors_of(failing))
    large = next((node for node in factors if isinstance(node, ast.Name) and node.id == name), None)
    first = None if product is None else without_views(product)
    between = (
        Place(place.file, line, place.function) for line in range(maker.line + 1, place.line)
    )
    is_other = any(_changes(scene.source_of(line), name) for line in between)
    return (
        (first, large) if first is not None and _is_unlike(first) and not is_other else (None, None)
    )


def _asked_for(scene: Scene, place: Place, failing: ast.expr) -> Iterator[_Chain]:
    """The failing product itself, if the statement or one of the next lines goes on with it."""
    request = scene.ending_request
    if not _is_unlike(failing):
        return
    operand_bytes = _largest_beside(scene, scene.advice_event)
    if request.size_bytes < _TIMES * operand_bytes:
        return
    for following in products_after(scene, place, failing):
        nothing = np.zeros(0, np.int64)
        yield _Chain(
            failing, following[0], following[1], nothing, request.size_bytes, operand_bytes, place
        )
        return


def products_after(
    scene: Scene, place: Place, failing: ast.expr
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the products that take in the failing one, with what stands for it there."""
    text = scene.source_of(place)
    statement, name = value_of(text), assigned_name(text)
    yield from _products_with(statement, failing)
    if statement is None or not name or not same_text(without_views(statement), failing):
        return
    for next_text in scene.source_below(place):
        yield from _products_with(value_of(next_text), ast.Name(name, ast.Load()))
        if _changes(next_text, name):
            return


def _changes(text: str, name: str) -> bool:
    """Whether a line gives a name another tensor, or writes into the one that it has."""
    of_name = re.escape(name)
    writes = rf"^{of_name}\s*(?:\[.*\]\s*)?[-+*/@|&^%]*=(?!=)|\b{of_name}\.\w+_\(|\bout\s*=\s*{of_name}\b"
    return assigned_name(text) == name or re.search(writes, text.strip()) is not None


def _products_with(
    statement: ast.expr | None, factor: ast.expr
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the products in a statement that have a factor, with that."""
    for node in () if statement is None else within(statement):
        factors = map(without_views, factors_of(node))
        yield from ((node, large) for large in factors if same_text(large, factor))


def _largest_beside(scene: Scene, event: int) -> int:
    """The bytes of the largest tensor that was in use after an event."""
    allocations = scene.device.allocations
    rows = allocations.alive_after(event)
    return int(allocations.requested_bytes[rows].max(initial=1))


def _is_contraction(node: ast.expr) -> bool:
    return bool(factors_of(node))


def factors_of(node: ast.expr) -> list[ast.expr]:
    """The two factors of a product; nothing where an expression is none."""
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    if not is_product and called(node) not in _CONTRACTS:
        return []
    tensors = [factor for factor in operands(node) if not isinstance(factor, ast.Constant)]
    return tensors[:_FACTORS] if called(node) != "einsum" or len(tensors) == _FACTORS else []


def _is_unlike(node: ast.expr) -> bool:
    """Whether it is a product of two, but no square of one: for that there is advice of its own."""
    factors = [without_views(factor) for factor in factors_of(node)]
    is_matrix = isinstance(node, ast.BinOp) or called(node) in _MATRIX_PRODUCTS
    return len(factors) == _FACTORS and not (is_matrix and same_text(*factors))
