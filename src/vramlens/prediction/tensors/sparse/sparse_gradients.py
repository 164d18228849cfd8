"""Sparse tensors: gradients of embeddings, matrices, and what summing rows of equal indices and a
sparse optimizer hold.

PyTorch's own shapes of sparse tensors lose their rows when one is cloned. The requests are those of
aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu (``_coalesce_sparse_cuda``) and
aten/src/ATen/native/sparse/SparseTensor.cpp (``sparse_mask``); the run of ``recommender`` on an
H200 shows each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.kernel_requests import is_called_by_autograd
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.tensors.known_values import KnownValues
from vramlens.prediction.tensors.operator_schema import Operator
from vramlens.prediction.tensors.sparse import compressed_matrices as compressed
from vramlens.prediction.tensors.sparse.sparse_products import (
    SUMMED,
    WORKSPACE,
    factors_of,
    summed_product,
)

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

UNKNOWN_ROWS = "sparse gradients: rows whose indices are not known are taken as all different"
ACCUMULATED = "sparse gradients that are accumulated over several backwards: the rows of each"
_INDICES, _IS_UNIQUE = "vramlens_indices", "vramlens_is_unique"
_INDEX_BYTES = 8
_MAKERS = {
    "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten._embedding_bag_backward",
    *compressed.MAKERS,
}
_MEAN = 1  # EmbeddingBagMode


class SparseGradients:
    """The operators on sparse tensors that PyTorch has no shapes for.

    Attributes:
        notes: what was taken so because values are not known, with its likely bytes.
    """

    def __init__(
        self, log: RequestLog, values: KnownValues, fake_mode: Any, notes: dict[str, int | None]
    ) -> None:
        self._log, self._values, self._fake_mode = log, values, fake_mode
        self.notes = notes
        self._results: dict[str, Callable[[Any], Any]] = {
            "aten._sparse_coo_tensor_with_dims_and_tensors": self._made,
            "aten._embedding_bag_backward": self._of_bags,
            "aten.clone": self._cloned,
            "aten.add": self._added,
            "aten.add_": self._added_in_place,
            "aten._coalesce": self._coalesced,
            "aten.sparse_mask": self._masked,
            "aten.t": self._transposed,
            **dict.fromkeys(compressed.MAKERS, self._compressed),
            **{name: partial(self._part, part) for name, part in compressed.PARTS.items()},
            "aten._to_sparse_csr": self._to_compressed,
            "aten.mm": partial(self._product, "aten.mm"),
            "aten.mv": self._product_with_vector,
            **{name: partial(self._product, name) for name in SUMMED},
        }

    def result(self, operator: Operator, args: Any, tensors: list[Any]) -> Any | None:
        """What an operator returns that makes a sparse tensor of shapes; None for all others."""
        make = self._results.get(operator.name)
        if make is None:
            return None
        is_about_sparse = any(tensor.layout is torch.sparse_coo for tensor in tensors)
        makes_one = operator.name in _MAKERS
        return make(args) if is_about_sparse or makes_one else None

    def copied(self, source: Any, copy: Callable[[Any], Any]) -> Any:
        """A sparse tensor of copies of another's indices and values, on another device.

        Raises:
            NotImplementedError: its layout is that of blocks.
        """
        if source.layout is not torch.sparse_coo:
            matrix = compressed.copied(source, copy, self._matrix)
            if matrix is None:
                raise NotImplementedError(
                    f"shapes of {source.layout} tensors forget how many values they have"
                )
            return matrix
        indices, values = copy(source._indices()), copy(source._values())
        if not hasattr(indices, "fake_device") and not hasattr(values, "fake_device"):
            shape, is_unique = source.size(), source.is_coalesced()
            return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_unique)
        return self._sparse(
            source.sparse_dim(),
            source.dense_dim(),
            source.size(),
            indices,
            values,
            is_unique=source.is_coalesced(),
        )

    def _made(self, args: Any) -> Any:
        sparse_dims, dense_dims, shape, indices, values = args[:5]
        return self._sparse(sparse_dims, dense_dims, shape, indices, values)

    def _compressed(self, args: Any) -> Any | None:
        return compressed.made(args, self._matrix)

    def _to_compressed(self, args: Any) -> Any:
        """The same columns and values, and where each row begins (coo_to_sparse_csr in
        aten/src/ATen/native/TensorConversions.cpp).
        """
        matrix = args[0]
        if compressed.is_compressed(matrix):
            return matrix
        unique = matrix if matrix.is_coalesced() else self._coalesced((matrix,))
        with self._fake_mode:
            begins = unique._indices().new_empty((int(matrix.shape[0]) + 1,))
            columns = unique._indices()[1]
        self._log.note(begins)
        parts = (begins, columns, unique._values(), matrix.size())
        return compressed.made(parts, self._matrix)

    def _matrix(self, shape: Any, indices: Any, values: Any) -> Any:
        """A matrix of indices that differ."""
        return self._sparse(2, 0, shape, indices, values, is_unique=True)

    def _part(self, name: str, args: Any) -> Any | None:
        return compressed.part(args[0], name) if compressed.is_compressed(args[0]) else None

    def _of_bags(self, args: Any) -> Any | None:
        """The gradient of an embedding bag: a row for each index, of means divided in place
        (_embedding_bag_sparse_backward and apply_bag_size_backward in EmbeddingBag.cpp).
        """
        gradient, indices, mode, is_sparse = args[0], args[1], args[8], args[9]
        if not is_sparse:
            return None
        rows, width = int(indices.numel()), int(gradient.shape[1])
        with self._fake_mode:
            values = gradient.new_empty((rows, width))
        self._log.note(values)
        if mode == _MEAN:
            size = gradient.element_size()
            reciprocals = [self._log.allocate(int(gradient.shape[0]) * size) for _ in range(2)]
            self._log.scratch(rows * size)
            for row in reciprocals:
                self._log.free(row)
        in_a_row = indices.view(1, -1)
        content = self._values.of(indices)
        if content is not None:
            self._values.set(in_a_row, content.view(1, -1))
        return self._sparse(1, 1, [args[6], width], in_a_row, values)

    def _sparse(
        self,
        sparse_dims: int,
        dense_dims: int,
        shape: Any,
        indices: Any,
        values: Any,
        *,
        is_unique: bool = False,
    ) -> Any:
        """A sparse tensor of these parts, which remembers its indices where they are known."""
        make = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
        with self._fake_mode:
            sparse = make(
                sparse_dims,
                dense_dims,
                shape,
                indices,
                values,
                dtype=values.dtype,
                layout=torch.sparse_coo,
                device=values.device,
                is_coalesced=is_unique,
            )
        content = self._values.of(indices)
        if content is not None:
            setattr(sparse, _INDICES, content)
        return sparse

    def _like(self, source: Any, indices: Any, values: Any) -> Any:
        sparse = self._sparse(
            source.sparse_dim(), source.dense_dim(), source.size(), indices, values
        )
        content = source.__dict__.get(_INDICES)
        if content is not None:
            setattr(sparse, _INDICES, content)
        return sparse

    def _cloned(self, args: Any) -> Any:
        """A copy; autograd's own has the same parts, as it takes a gradient over where nothing
        else holds it (torch/csrc/autograd/functions/accumulate_grad.h).
        """
        source = args[0]
        indices, values = source._indices(), source._values()
        if not is_called_by_autograd():
            indices, values = indices.clone(), values.clone()
        return self._like(source, indices, values)

    def _added(self, args: Any) -> Any | None:
        """The rows of both, one after the other (s_add_out_sparse_cuda in
        sparse/cuda/SparseCUDATensorMath.cu).
        """
        first, second = args[:2]
        if not (first.is_sparse and second.is_sparse):
            return None
        indices = torch.cat([first._indices(), second._indices()], 1)
        values = torch.cat([first._values(), second._values()])
        total = self._like(first, indices, values)
        contents = [tensor.__dict__.get(_INDICES) for tensor in (first, second)]
        total.__dict__.pop(_INDICES, None)
        if all(content is not None for content in contents):
            setattr(total, _INDICES, torch.cat(contents, 1))
        return total

    def _added_in_place(self, args: Any) -> Any:
        """The dense tensor, whose rows are added to where they are (add_out_dense_sparse_cuda).

        A sparse one keeps the rows of both: how many it has cannot be changed here, so that is noted.
        """
        target, added = args[:2]
        if target.is_sparse:
            size = added._values().nbytes
            self.notes[ACCUMULATED] = size + (self.notes.get(ACCUMULATED) or 0)
        return target

    def _coalesced(self, args: Any) -> Any:
        """One row for each index: sorted by a copy of the indices, with two more beside it."""
        source = args[0]
        rows = int(source._nnz())
        is_unique = bool(source.__dict__.get(_IS_UNIQUE))
        distinct = self._distinct(source)
        remaining = rows if distinct is None else int(distinct.shape[1])
        flat = self._flat_indices(source)
        positions = [self._log.allocate(rows * _INDEX_BYTES) for _ in range(2)]
        self._log.scratch(2 * rows * _INDEX_BYTES)  # a merge sort's copies of keys and positions
        with self._fake_mode:
            values = source._values().new_empty((remaining, *source._values().shape[1:]))
            indices = flat[:remaining].unsqueeze(0)
            if source.sparse_dim() > 1:
                indices = flat.new_empty((source.sparse_dim(), remaining))
        self._log.note(values)
        self._log.note(indices)
        for row in positions:
            self._log.free(row)
        if distinct is not None:
            self._values.set(indices, distinct)
        elif not is_unique:
            self.notes[UNKNOWN_ROWS] = None
            self._log.hangs_on_guess(values, rows, 1)
        return self._sparse(
            source.sparse_dim(), source.dense_dim(), source.size(), indices, values, is_unique=True
        )

    def _flat_indices(self, source: Any) -> Any:
        """One number for each index, made of those of several dimensions: each is multiplied first,
        then they are summed (flatten_indices in aten/src/ATen/native/SparseTensorUtils.cpp).
        """
        rows = int(source._nnz())
        with self._fake_mode:
            flat = source._indices().new_empty((rows,))
        multiplied = None
        if source.sparse_dim() > 1:
            multiplied = self._log.allocate(source.sparse_dim() * rows * _INDEX_BYTES)
        self._log.note(flat)
        if multiplied is not None:
            self._log.free(multiplied)
        return flat

    def _transposed(self, args: Any) -> Any:
        """A matrix of copies, whose two rows of indices change places (sparse_transpose_ in
        aten/src/ATen/native/TensorShape.cpp): no longer in order, but as unique as they were.
        """
        source = args[0]
        if compressed.is_compressed(source):
            return compressed.transposed(source, self._matrix)
        indices, values = source._indices().clone(), source._values().clone()
        self._log.scratch(int(source._nnz()) * _INDEX_BYTES)
        shape = tuple(reversed(source.size()))
        transposed = self._sparse(2, source.dense_dim(), shape, indices, values)
        setattr(transposed, _IS_UNIQUE, source.is_coalesced() or source.__dict__.get(_IS_UNIQUE))
        content = source.__dict__.get(_INDICES)
        if content is not None:
            setattr(transposed, _INDICES, content.flip(0))
        return transposed

    def _product(self, name: str, args: Any) -> Any | None:
        """A sparse matrix times a dense one; without a matrix that it is added to, to zeros."""
        factors = factors_of(name, args)
        if factors is None:
            return None
        matrix, dense = factors
        self.notes[WORKSPACE] = None
        size = int(matrix.shape[0]) * int(dense.shape[1]) * dense.element_size()
        zeros = None if name in SUMMED else self._log.allocate(size)
        if compressed.is_compressed(matrix):
            product = compressed.product(matrix, dense, self._fake_mode, self._log)
        else:
            unique = matrix if matrix.is_coalesced() else self._coalesced((matrix,))
            product = summed_product(unique, dense, self._fake_mode, self._log)
        if zeros is not None:
            self._log.free(zeros)
        return product

    def _product_with_vector(self, args: Any) -> Any | None:
        matrix, vector = args[:2]
        if matrix.layout is not torch.sparse_coo or not compressed.is_compressed(matrix):
            return None
        self.notes[WORKSPACE] = None
        return compressed.product(matrix, vector, self._fake_mode, self._log)

    def _distinct(self, source: Any) -> Any | None:
        """The distinct indices; None where they are not known."""
        content = source.__dict__.get(_INDICES)
        return None if content is None else torch.unique(content, dim=1)

    def _masked(self, args: Any) -> Any:
        """A dense tensor's rows that a sparse one has: gathered, then multiplied by ones."""
        dense, mask = args[:2]
        with self._fake_mode:
            shape = mask._values().shape
            indices = torch.empty_like(mask._indices())
            values = dense.new_empty(shape)
        factor = self._log.allocate(dense.element_size())
        gathered = self._log.allocate(values.numel() * values.element_size())
        self._log.note(indices)
        self._log.note(values)
        self._log.free(gathered)
        self._log.free(factor)
        return self._like(mask, indices, values)
