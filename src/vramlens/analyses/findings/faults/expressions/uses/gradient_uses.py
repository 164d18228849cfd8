"""What a backward pass makes more of than may be needed, by the operation whose gradient failed."""

from __future__ import annotations

import re

from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ExpressionUse,
    of_call,
)

_BACKWARD = re.compile(r"Backward\d+$")
_NODES = (
    of_call(
        r"^Sparse(?:Addmm|Mm)$",
        "makes the gradient of a sparse matrix dense: a number for each pair of its rows and"
        " columns",
        "where its values are learned, gather the rows and add them up by hand, out.index_add_(0,"
        " row, value[:, None] * x[col]): the gradient then has a number for each value alone;"
        " where they are not, take the matrix detached",
    ),
    of_call(
        r"^Gather$",
        "makes a gradient as large as all that it picks from, expanded dimensions written out",
        "gather from the tensor itself, not from one that is expanded: of x with a row for each of"
        " n points, x.flatten(0, 1)[index + n * sample] (sample: each one's number) has a gradient"
        " as large as x",
    ),
    of_call(
        r"^LogSoftmax$",
        "makes a gradient for each class of each row",
        "take the loss of a part of the rows at a time, with torch.utils.checkpoint around each"
        " part, or make logits only where they count",
    ),
    of_call(
        r"^Upsample\w+$",
        "makes the gradient of all samples at their new size at once",
        "if a layer without neighbors follows (a 1x1 convolution, a linear layer), apply it"
        " before, to the smaller maps",
    ),
    of_call(
        r"^Select$",
        "makes a gradient as large as the whole tensor for one piece of it",
        "if many pieces are taken, one after the other, take all at once: x.unbind(dim) makes one"
        " gradient for all of them",
    ),
    of_call(
        r"^Slice$",
        "makes a gradient as large as the whole tensor for a part of it",
        "if one part is used, as in logits[:, :-1], use the whole and mark what is left out, with"
        " labels that the loss ignores (-100); if many are, take them at once: x.split(size, dim)"
        " makes one gradient for all of them",
    ),
)
"""Operations whose gradients take more than may be needed."""


_SUMMED_PRODUCT = of_call(
    r"\*.*\)\.sum\(|\bsum\(.*\*",
    "makes every product before any is added up",
    "a matrix product makes the sums alone: write it as torch.einsum, @ or torch.bmm; of integers,"
    " which no matrix product on a GPU takes, add up one column after the other",
)
_EXPANDED_FACTOR = of_call(
    r"\b(?:bmm|matmul)\(.*\.expand(?:_as)?\(",
    "makes a gradient for every copy of what is expanded",
    "of one matrix for the whole batch take x @ weight, whose gradient is as large as the weight",
)


def use_of_statement(statement: str, *, expression: str, node: str) -> ExpressionUse | None:
    """What a statement makes more of than may be needed, by what follows in it on what failed.

    Args:
        expression: what failed in it; "" where that is not known.
        node: the operation whose gradient failed; "" outside of a backward pass.
    """
    if "*" in expression or node.startswith("Mul"):
        return _SUMMED_PRODUCT if _SUMMED_PRODUCT.call.search(statement) else None
    if node.startswith("Bmm"):
        return _EXPANDED_FACTOR if _EXPANDED_FACTOR.call.search(statement) else None
    return None


def use_of_node(node: str) -> ExpressionUse | None:
    """What the gradient of an operation (``GatherBackward0``) makes more of than may be needed; None where
    its name says nothing.
    """
    operation = _BACKWARD.sub("", node)
    if operation == node:
        return None
    return next((use for use in _NODES if use.call.search(operation)), None)
