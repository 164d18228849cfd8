"""A request that is more than all memory there is: what it was for, as far as sizes tell."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.attribution.phases import LINEAR_FORWARD
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import use_at_the_end
from vramlens.analyses.findings.faults.expressions.expression_parts import (
    is_constant,
    operands,
    value_of,
)
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.allocator_sizes import block_size
from vramlens.ground.place import Place, base_name
from vramlens.ground.source_code import called
from vramlens.ground.verdict import Verdict
from vramlens.trace import OutOfMemory
from vramlens.units import format_size

_OF_ONE_TENSOR = re.compile(
    r"^(?:(?:nan)?(?:sum|mean|median|quantile)|prod|count_nonzero|std|var|norm|a?max|a?min|arg(?:max|min|sort)|any|all"
    r"|sort|topk|kthvalue|unique|bincount|histc|(?:log)?cum(?:sum|prod|sumexp)|logsumexp|(?:log_)?softmax|normalize"
    r"|multinomial|bernoulli|dropout|(?:rand|randn|zeros|ones|empty|full)_like"
    r"|float|double|half|bfloat16|long|int|bool|to|type|cuda|cpu|clone|contiguous|reshape|flatten|view|permute"
    r"|relu|gelu|silu|sigmoid|tanh|exp|log(?:1p)?|r?sqrt|abs|neg|pow|clamp|round|gather|take|index_select)_?$"
)
"""Calls that combine no rows of a tensor with those of another."""
_LAYER = re.compile(r"torch[/\\]nn[/\\]")
"""A layer makes what its weights say: no pairs, and no one-hot form, whatever its size divides."""
_OUTPUT_LAYER = re.compile(
    r"\.(?:lm_head|embed_out|output_projection|embed_tokens|wte|word_embeddings|shared)\.weight$"
)
"""What language models call the weight that makes logits (transformers, GPT-NeoX, fairseq): where it is
the words' own, it is named after these.
"""
_TIMES_A_HIDDEN_STATE = 12
"""As large as the largest tensor beside it: layers inside a block make 4 to 8 times as much."""
_LEAST_TIMES = 16
"""As large as a known tensor, from which on a request is all pairs or all classes of it: less is what a
few channels or heads make.
"""
_UNKNOWN = -1
"""Columns of what has no known shape."""
_FEWEST_ROWS = 1024
"""Of a square matrix: smaller ones are as large as many other things."""
_FACTORS_HINT = (
    '; torch.linalg.svd and qr make such a matrix unless told full_matrices=False, mode="reduced"'
)
_LEAST_TABLE = 4096
"""Bytes of the rows to compare with: fewer are a layer's bias, or anything."""
_MANY_OTHERS, _MOST_TABLES = 1024, 64
"""Rows to compare with that may be a part of a larger tensor, and parts of it: of fewer rows, the logits of
a small vocabulary would be as large.
"""


@dataclass(frozen=True, slots=True)
class _Use:
    """What a request was for, in a sentence, and what to change.

    Attributes:
        is_sure: whether the source text, or autograd, says so; sizes alone do not prove it.
    """

    reading: str
    fix: str
    is_sure: bool = False


@after_failure
def request_too_large(scene: Scene) -> Iterator[Finding]:
    """The failed request, if it alone is more than the limit, or than the device."""
    request, outside = scene.ending_request, scene.outside
    most_bytes = outside.limit_bytes or outside.total_bytes
    if most_bytes is None or request.size_bytes <= most_bytes:
        return
    place = scene.view.place_of_stack(request.stack)
    use = _use_of(scene, request)
    evidence = ("no setting and no freed memory can make it fit",)
    yield Finding(
        id="request_too_large",
        verdict=Verdict.PROVEN,
        title=f"A single request for {format_size(request.size_bytes)} exceeds the whole "
        f"{format_size(most_bytes)}",
        bytes=request.size_bytes,
        place=place,
        evidence=evidence if use is None else (*evidence, use.reading),
        fix=_fix_of(use, place),
    )


def _plain_fix(place: Place | None) -> str:
    line = "the failing line" if place is None else f"{base_name(place.file)}:{place.line}"
    return f"look for a wrong shape at {line}, or compute it in pieces (chunks of its rows)"


def _fix_of(use: _Use | None, place: Place | None) -> str:
    """What to change."""
    plain = _plain_fix(place)
    if use is not None and use.is_sure:
        return use.fix
    return plain if use is None else f"{use.fix}. If it is something else, {plain}"


def _use_of(scene: Scene, request: OutOfMemory) -> _Use | None:
    """What the request is for, as far as its expression and what is alive beside it tell."""
    failed_use = use_at_the_end(scene)
    if failed_use is not None:
        subject, said = failed_use
        return _Use(f"{subject} {said.reading}", said.fix, is_sure=True)
    if _is_of_output_layer(scene, request):
        return _Use(
            "the output layer makes the logits of every position for the whole vocabulary",
            "compute only the logits that are used (with transformers, logits_to_keep=1 where only"
            " the last position is read), or the loss in chunks of positions",
        )
    innermost = scene.trace.stacks.of(request.stack)[:1]
    if innermost and _LAYER.search(innermost[0].file):
        return None
    largest_first = sorted(set(scene.advice_shapes.values()), key=lambda shape: -shape.bytes)
    sizes = _sizes_by_columns(scene)
    for shape in largest_first:
        use = _pairs(scene, shape, request.size_bytes, sizes) or _all_classes(
            shape, request.size_bytes
        )
        if use is not None:
            return use
    return None


def _pairs(
    scene: Scene, shape: Shape, request_bytes: int, sizes: Mapping[int, Collection[int]]
) -> _Use | None:
    """One number, or one in every column, for each pair of rows, where what failed may make such.

    Args:
        sizes: of what is in use, by columns.
    """
    if not _may_make_pairs(scene.ending_expression):
        return None
    tables = {
        *sizes.get(_UNKNOWN, ()),
        *sizes.get(shape.sizes[-1] if shape.sizes else _UNKNOWN, ()),
    }
    is_known = bool(scene.ending_expression)
    square = _square(shape, request_bytes, has_text=is_known)
    return square or _all_pairs(shape, request_bytes, tables)


def _sizes_by_columns(scene: Scene) -> Mapping[int, Collection[int]]:
    """The sizes of what is in use, as blocks (the recorded ones may be rounded), by how many columns it has."""
    shapes, sizes = scene.advice_shapes, scene.device.allocations.requested_bytes
    by_columns: defaultdict[int, set[int]] = defaultdict(set)
    for row in scene.advice_rows.tolist():
        is_known = row in shapes and shapes[row].sizes
        by_columns[shapes[row].sizes[-1] if is_known else _UNKNOWN].add(block_size(int(sizes[row])))
    return by_columns


def _may_make_pairs(expression: str) -> bool:
    """Whether what failed may be a number for each pair: arithmetic of two tensors, or a call of which nothing is
    known. A sum, a sample and a conversion take one tensor, whatever its size divides.
    """
    node = value_of(expression)
    while node is not None:  # from what was done last to what that was done to
        tensor = _its_one_tensor(node)
        if tensor is None:
            return True
        if isinstance(tensor, ast.Name | ast.Attribute | ast.Constant):
            return False
        node = tensor
    return True


def _its_one_tensor(node: ast.expr) -> ast.expr | None:
    """What an expression combines no rows of with those of another tensor; None where it may."""
    if isinstance(node, ast.BinOp | ast.Compare):
        operand = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
        if is_constant(operand):
            return node.left
        return operand if is_constant(node.left) else None
    tensors = operands(node) if _OF_ONE_TENSOR.search(called(node)) else []
    return tensors[0] if tensors else None


def _is_of_output_layer(scene: Scene, request: OutOfMemory) -> bool:
    """Whether a linear layer asked for it, in a model that has one for logits, and it is far larger
    than any layer's input.
    """
    innermost = scene.trace.stacks.of(request.stack)[:1]
    if not innermost or not LINEAR_FORWARD.search(f"{innermost[0].file}:{innermost[0].function}"):
        return False
    view, rows = scene.view, scene.advice_rows
    if not any(_OUTPUT_LAYER.search(view.names.name(row)) for row in rows.tolist()):
        return False
    computed = rows[view.categories.category[rows] != Category.PARAMETERS]
    largest_bytes = int(view.device.allocations.requested_bytes[computed].max(initial=1))
    return request.size_bytes >= _TIMES_A_HIDDEN_STATE * largest_bytes


def _square(shape: Shape, request_bytes: int, *, has_text: bool) -> _Use | None:
    """One number for each pair of rows, or of columns, of a known tensor.

    Args:
        has_text: whether the expression that failed is known.
    """
    hint = "" if has_text else _FACTORS_HINT
    if shape.is_integer and shape.item_bytes == 1:
        return None  # no product is made of bytes, and eight of them are one whole number
    for size in sorted(set(shape.sizes), reverse=True):
        if size >= _FEWEST_ROWS and request_bytes == size * size * shape.item_bytes:
            return _Use(
                f"it is a square matrix: a number for each pair of {size:,} rows (or columns), as"
                f" many as {shape} has",
                "if only its diagonal, some of its entries or sums of it are needed, compute these"
                " instead (in blocks of rows; for listed pairs (x[i] * y[j]).sum(-1)); if most of"
                f" it is zeros, make it sparse{hint}",
            )
    return None


def _all_pairs(shape: Shape, request_bytes: int, sizes: Collection[int]) -> _Use | None:
    """Every row of a known tensor with every row of another that has as many columns."""
    if len(shape.sizes) != 2 or not shape.bytes or request_bytes % shape.bytes:
        return None
    rows, columns = shape.sizes
    others = request_bytes // shape.bytes
    table_bytes = others * columns * shape.item_bytes
    is_known = block_size(table_bytes) in sizes
    is_part = others >= _MANY_OTHERS and _is_part(table_bytes, sizes)
    if others < _LEAST_TIMES or table_bytes < _LEAST_TABLE or not (is_known or is_part):
        return None
    pairs_bytes = format_size(rows * others * shape.item_bytes)
    return _Use(
        f"it is {rows:,} x {others:,} x {columns:,} numbers: all pairs of rows of {shape} and"
        " another, with every column (a broadcast)",
        f"use torch.cdist or a matrix product, which make one number per pair ({pairs_bytes}), or"
        " compare chunks of rows",
    )


def _all_classes(shape: Shape, request_bytes: int) -> _Use | None:
    """One number a class for each entry of a known tensor of class numbers, as wide as these."""
    if not shape.is_integer or not shape.bytes or request_bytes % shape.bytes:
        return None
    classes = request_bytes // shape.bytes
    is_power_of_two = classes & (classes - 1) == 0  # such divide nearly everything
    if classes < _LEAST_TIMES or is_power_of_two:
        return None
    return _Use(
        f"it is {classes:,} times as large as {shape}, as a one-hot form is",
        "use the class numbers themselves, not their one-hot form: scatter_add_ into zeros for"
        " counts, gather to pick entries, cross_entropy for a loss, an embedding for a product",
    )


def _is_part(size_bytes: int, sizes: Collection[int]) -> bool:
    """Whether some tensor is a few times as large: one of several tables in it."""
    part = block_size(size_bytes)
    return any(size % part == 0 and size <= _MOST_TABLES * part for size in sizes)
