"""Matrices whose indices are compressed by row or column (CSR, CSC), as cuSPARSE takes them.

Shapes of such tensors forget how many values they have. So one is a sparse tensor of the other kind
here, of views of its parts, which requests nothing: PyTorch keeps the parts that it is given
(aten/src/ATen/SparseCsrTensorImpl.cpp). A product converts no index, and is made at once
(aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp, ``spmm``); one with a transposed matrix takes
it row by row again, with copies of its parts and one more of the indices (seen on an H200).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.requests.request_log import RequestLog

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

MAKERS = {"aten.sparse_compressed_tensor", "aten._sparse_compressed_tensor_unsafe"}
PARTS = {
    "aten.values": "values",
    "aten.crow_indices": "compressed",
    "aten.ccol_indices": "compressed",
    "aten.col_indices": "plain",
    "aten.row_indices": "plain",
}
"""What gives a part of such a matrix, with the name of that."""
_PARTS, _IS_TURNED = "vramlens_parts", "vramlens_is_turned"
_DIMENSIONS = 2

MakeSparse = Callable[[Any, Any, Any], Any]
"""Makes a sparse tensor of a shape, indices and values."""


def is_compressed(tensor: Any) -> bool:
    """Whether a sparse tensor stands for a compressed one."""
    return _PARTS in tensor.__dict__


def made(args: Any, make: MakeSparse) -> Any | None:
    """The matrix of compressed indices, plain ones and values; None for one of blocks, or for several."""
    compressed, plain, values, shape = args[:4]
    if values.dim() != 1 or len(shape) != _DIMENSIONS:
        return None
    matrix = make(shape, plain.unsqueeze(0).expand(_DIMENSIONS, -1), values)
    setattr(matrix, _PARTS, {"compressed": compressed, "plain": plain, "values": values})
    return matrix


def part(matrix: Any, name: str) -> Any:
    """A view of one of the tensors that a matrix is made of."""
    return matrix.__dict__[_PARTS][name].detach()


def copied(source: Any, copy: Callable[[Any], Any], make: MakeSparse) -> Any | None:
    """A matrix of copies of the parts of one with values, as of one that goes to the GPU."""
    by_row = source.layout is torch.sparse_csr
    if not by_row and source.layout is not torch.sparse_csc:
        return None
    compressed = source.crow_indices() if by_row else source.ccol_indices()
    plain = source.col_indices() if by_row else source.row_indices()
    parts = [copy(tensor) for tensor in (compressed, plain, source.values())]
    return made((*parts, source.size()), make)


def transposed(matrix: Any, make: MakeSparse) -> Any:
    """The same parts, which are those of its columns then."""
    parts = matrix.__dict__[_PARTS]
    turned = made((*parts.values(), tuple(reversed(matrix.size()))), make)
    setattr(turned, _IS_TURNED, not matrix.__dict__.get(_IS_TURNED))
    return turned


def product(matrix: Any, dense: Any, fake_mode: Any, log: RequestLog) -> Any:
    """The product with a dense matrix or vector."""
    with fake_mode:
        result = dense.new_empty((int(matrix.shape[0]), *dense.shape[1:]))
    beside = []
    if matrix.__dict__.get(_IS_TURNED):
        parts = matrix.__dict__[_PARTS]
        beside += [log.allocate(_own_bytes(tensor)) for tensor in (*parts.values(), parts["plain"])]
    if not (dense.is_contiguous() or dense.t().is_contiguous()):
        beside.append(log.allocate(_own_bytes(dense)))
    log.note(result)
    for row in reversed(beside):
        log.free(row)
    return result


def _own_bytes(tensor: Any) -> int:
    """Bytes of its elements, each of which a view may show many times."""
    return int(tensor.numel() * tensor.element_size())
