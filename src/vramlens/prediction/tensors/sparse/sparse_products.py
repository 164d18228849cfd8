"""A sparse matrix times a dense one, as cuSPARSE multiplies them.

aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu (``s_addmm_out_sparse_dense_cuda``) and
SparseBlasLegacy.cpp: the indices as 32-bit numbers, the rows' as where each begins, and the product
once more, column after column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.prediction.requests.request_log import RequestLog

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

WORKSPACE = "products of sparse matrices: cuSPARSE's workspace"
SUMMED = {"aten._sparse_addmm", "aten.addmm"}
"""Operators that add a product to their first argument."""
_SHORT_INDEX_BYTES = 4


def factors_of(name: str, args: Any) -> tuple[Any, Any] | None:
    """A sparse matrix and the dense one that it is multiplied with; None for other factors."""
    first, second = args[1:3] if name in SUMMED else args[:2]
    is_sparse_first = first.layout is torch.sparse_coo and first.dense_dim() == 0
    return (first, second) if is_sparse_first and second.layout is torch.strided else None


def summed_product(matrix: Any, dense: Any, fake_mode: Any, log: RequestLog) -> Any:
    """The product of a matrix without equal indices and a dense one, added to another.

    Args:
        matrix: its parts are requested already.
    """
    count = int(matrix._nnz())
    rows = int(matrix.shape[0])
    with fake_mode:
        product = dense.new_empty((rows, int(dense.shape[1])))
    log.note(product)
    beside = [log.allocate((rows + 1) * _SHORT_INDEX_BYTES)]
    log.scratch(count * _SHORT_INDEX_BYTES)  # the rows' indices
    beside.append(log.allocate(count * _SHORT_INDEX_BYTES))
    beside.append(log.allocate(product.nbytes))
    if not (dense.is_contiguous() or dense.t().is_contiguous()):
        beside.append(log.allocate(dense.numel() * dense.element_size()))
    for row in reversed(beside):
        log.free(row)
    return product
