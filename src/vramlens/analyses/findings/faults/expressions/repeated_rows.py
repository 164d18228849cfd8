"""Rows of a small table that a look-up repeats for each pair of positions, only to be multiplied."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.phases import EMBEDDING_FORWARD
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.contraction_order import (
    factors_of,
    products_after,
)
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.faults.expressions.einsum_order import parts_of
from vramlens.analyses.findings.faults.expressions.expression_parts import (
    equation_of,
    same_text,
    value_of,
    within,
    without_views,
)
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.source_code import called
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_TIMES = 16
"""As large as the table: its rows are looked up that often on average."""
_LEAST_SHARE = 0.25
"""Of what is in use, with the failed request."""


@dataclass(frozen=True, slots=True)
class _LookUp:
    """A call of an embedding that a product takes in.

    Attributes:
        table: the name of its weight.
        rows: what its calls at this line made, and is in use.
        table_bytes, result_bytes: of the table, and of the largest of those.
        call, product: as the program has them.
        factor: what stands for the call in the product.
        place: of the line.
    """

    table: str
    rows: NDArray[np.int64]
    table_bytes: int
    result_bytes: int
    call: ast.expr
    product: ast.expr
    factor: ast.expr
    place: Place


@after_failure
def repeated_rows(scene: Scene) -> Iterator[Finding]:
    """The look-ups of most bytes whose rows a product takes in, where a table has far fewer rows."""
    look_ups = [look_up for look_up in _look_ups(scene) if _is_far_larger(look_up)]
    largest = max(look_ups, key=lambda look_up: scene.bytes_of(look_up.rows), default=None)
    if largest is None:
        return
    size_bytes = scene.bytes_of(largest.rows)
    if size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    call = shown(ast.unparse(largest.call))
    other = _other_factor(largest)
    yield Finding(
        id="repeated_rows",
        verdict=Verdict.LIKELY,
        title=f"{call} copies a row of {largest.table} for each entry of its index, and a product"
        f" takes them in: {scene.part_of_heap(size_bytes)}",
        bytes=size_bytes,
        place=largest.place,
        evidence=(
            f"the table has {format_size(largest.table_bytes)}, one such result"
            f" {format_size(largest.result_bytes)}",
        ),
        fix=f"if nothing else uses these rows, multiply {other} with the whole table first"
        f" ({other} @ weight.T: a number for each of its rows), and pick from that with gather(),"
        f" the index expanded to its dimensions (up to {format_size(size_bytes)} less)",
        extent=scene.extent(largest.rows),
        recurs=True,
    )


def _is_far_larger(look_up: _LookUp) -> bool:
    return look_up.result_bytes >= _TIMES * look_up.table_bytes


def _other_factor(look_up: _LookUp) -> str:
    """What the looked-up rows are multiplied with, as the program has it."""
    factors = map(without_views, factors_of(look_up.product))
    other_factors = [factor for factor in factors if not same_text(factor, look_up.factor)]
    return shown(ast.unparse(other_factors[0])) if other_factors else "the other factor"


def _look_ups(scene: Scene) -> Iterator[_LookUp]:
    """Yields what each embedding's calls at each line made, where a product follows."""
    view, allocations = scene.view, scene.device.allocations
    tables = {
        view.names.name(row): row for row in view.names.of_kind(TensorKind.PARAMETER).tolist()
    }
    is_looked_up = scene.trace.stacks.within(
        EMBEDDING_FORWARD, allocations.stack[scene.advice_rows]
    )
    rows = scene.advice_rows[is_looked_up & view.modules.marked[scene.advice_rows]]
    by_line: dict[tuple[str, Place], list[int]] = {}
    for row in rows.tolist():
        place, path = view.place_of_block(row), view.modules.paths[view.modules.module[row]]
        if place is not None:
            by_line.setdefault((path.rpartition(".")[2], place), []).append(row)
    for (name, place), of_line in by_line.items():
        path = view.modules.paths[view.modules.module[of_line[0]]]
        product = _product_of(scene, place, name)
        if product is None or f"{path}.weight" not in tables:
            continue
        result_rows = np.array(of_line, np.int64)
        yield _LookUp(
            table=f"{path}.weight",
            rows=result_rows,
            table_bytes=int(allocations.requested_bytes[tables[f"{path}.weight"]]),
            result_bytes=int(allocations.requested_bytes[result_rows].max()),
            call=product[0],
            product=product[1],
            factor=product[2],
            place=place,
        )


def _product_of(
    scene: Scene, place: Place, name: str
) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """The call of a module in a line, the product that takes its rows in, each with a row of the other factor, and what
    stands for the call there; None without such.
    """
    statement = value_of(scene.source_of(place))
    calls = () if statement is None else within(statement)
    call = next((node for node in calls if called(node) == name), None)
    if call is None:
        return None
    for product, factor in products_after(scene, place, call):
        if _multiplies_rows(product, factor):
            return call, product, factor
    return None


def _multiplies_rows(product: ast.expr, factor: ast.expr) -> bool:
    """Whether a product adds up over the rows' entries alone, and the other factor has an index of the look-up, too: of
    an input that a weight projects, it has not.
    """
    equation = equation_of(product)
    if equation:
        letters = parts_of(equation)
        places = [same_text(without_views(node), factor) for node in factors_of(product)]
        if letters is None or True not in places:
            return False
        look_up, other = letters[:2] if places[0] else letters[1::-1]
        index, entries, output = set(look_up[:-1]), look_up[-1:], letters[2]
        is_sum = entries in other and entries not in output and index <= set(output)
        return is_sum and bool(index & set(other))
    turned = [node for node in factors_of(product) if not same_text(node, without_views(node))]
    return any(same_text(without_views(node), factor) for node in turned)
