"""Products, solved systems and factorizations: cuBLAS' workspaces, and what a solution holds.

Products: cuBLAS' workspace, once a handle and stream (aten/src/ATen/cuda/CublasHandlePool.cpp); each
thread has a handle of its own. Recordings: 32 MiB on Hopper for each thread, and 1 MiB with a bias.

aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp (lu_factor, lu_solve_kernel) and
BatchLinearAlgebraLibBlas.cpp, whose handle brings its workspace. The recording of ``newton_beam`` on
an H100 shows the requests of 512 systems of 160 unknowns. cuSOLVER's own workspaces are as matrices
of 720 to 1,445 rows had them on an H100 (``operators.py`` in benchmarks/prediction), for one matrix.
Symmetric eigenvalues: cuSOLVER's syevd, measured on an H200.
"""

from __future__ import annotations

import math
import re
import threading
from typing import TYPE_CHECKING, Any

from vramlens.cards.known_cards import Card
from vramlens.prediction.kernels.kernel_call import KernelCall, Rule
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.units import MIB

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

BASIS = "workspaces of matrix factorizations, which are modeled roughly"
SHARE = 0.1
_PRODUCTS = {
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.mv", "aten.dot",
    "aten.linear", "aten._addmm_activation",
}  # fmt: skip
_COPIES_FACTORS = {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"}
_LT_WORKSPACE = MIB
"""cuBLASLt's, for products with a bias (aten/src/ATen/cuda/CUDABlas.cpp, _getWorkspaceSize):
recording of gpt.
"""
_FACTORIZATIONS = ("aten.linalg_", "aten.cholesky", "aten.triangular_solve", "aten._linalg_")
_SOLVED_BY_LU = {"aten._linalg_solve_ex", "aten.linalg_lu_solve", "aten.linalg_inv_ex"}
_TRIANGULAR = {"aten.linalg_solve_triangular", "aten.triangular_solve"}
_FACTORED = {"aten.linalg_lu_factor_ex", "aten.linalg_lu_factor", "aten.linalg_lu"}
_ROWS_OF_CUSOLVER = 512
_MOST_ROWS_IN_ONE_CALL = {True: 16, False: 128}
"""By whether there are as many right sides as rows."""
_INDEX_BYTES = 8
_FEWEST_ROWS_OF_SYEVD, _MATRICES_OF_SYEVD = 512, 4
_SHARE_OF_GEQRF = 1.5
_MOST_COPIES, _ONE_SEGMENT = 16, 20 * MIB
"""A matrix exponential takes thirteen; what else was measured takes fewer."""
_HAS_LARGE_WORKSPACE = re.compile(r"eig|svd|lstsq")


class BlasHandles:
    """The handles of cuBLAS on one card, each with a workspace."""

    def __init__(self, log: RequestLog, card: Card) -> None:
        self._log, self._card = log, card
        self._known: set[Any] = set()

    def follow(self, name: str, args: Any) -> None:
        """Asks for the workspaces that an operator needs and that are not there yet."""
        place = threading.get_ident(), self._log.queue
        if name in _PRODUCTS or _solves_with_cublas(name, args):
            self._take(place, self._workspace)
        if name == "aten.addmm" and args[0].dim() == 1:
            self._take(("lt", place), _LT_WORKSPACE)

    def _take(self, place: Any, size: int) -> None:
        if place not in self._known:
            self._known.add(place)
            self._log.allocate(size)

    @property
    def _workspace(self) -> int:
        """By the card (getChosenWorkspaceSize: 4096 KiB x 8 on Hopper and B200, else 4096 KiB x 2
        and 16 KiB x 8).
        """
        return 32 * MIB if self._card.capability[0] in (9, 10) else 8 * MIB + 128 * 1024


def is_rough(call: KernelCall) -> bool:
    """Whether an operator factors matrices or solves systems that are large enough to matter: the
    workspaces of small ones fit the segment that every range has. Those of eigenvalues and
    singular values may be large for small matrices, too.
    """
    if not call.name.startswith(_FACTORIZATIONS) or "norm" in call.name:
        return False
    largest = max(tensor.numel() * tensor.element_size() for tensor in call.tensors)
    return bool(_HAS_LARGE_WORKSPACE.search(call.name)) or _MOST_COPIES * largest > _ONE_SEGMENT


def _solves_with_cublas(name: str, args: Any) -> bool:
    if name in _FACTORED:
        *batch, rows, columns = args[0].shape
        return bool(math.prod(batch) > 1 and rows == columns < _ROWS_OF_CUSOLVER)
    return name in _SOLVED_BY_LU or name in _TRIANGULAR


def _is_single(matrix: Any) -> bool:
    return bool(math.prod(matrix.shape[:-2]) == 1)


def _solution(call: KernelCall) -> list[int]:
    """What a solution by an LU factorization holds: the right side once more, and for several
    systems two permutations, and of those that it factors itself the right side twice.
    """
    matrix, solution = call.args[0], call.outputs[0]
    is_square = solution.shape[-1] == matrix.shape[-1]
    if _is_single(matrix):
        return [solution.nbytes]
    if matrix.shape[-1] <= _MOST_ROWS_IN_ONE_CALL[is_square]:
        return []
    right_sides = [solution.nbytes] * (2 if call.name == "aten._linalg_solve_ex" else 1)
    return [math.prod(matrix.shape[:-1]) * _INDEX_BYTES] * 2 + right_sides


def _inverse(call: KernelCall) -> list[int]:
    """The same beside the factors, which are not a result."""
    return [call.args[0].nbytes, *_solution(call)]


def _copy_and(times: float) -> Rule:
    """A copy of the matrix, and so many times as much for cuSOLVER, which takes it for one matrix."""

    def rule(call: KernelCall) -> list[int]:
        matrix = call.args[0]
        return [matrix.nbytes, int(times * matrix.nbytes) if _is_single(matrix) else 0]

    return rule


def _eigenvalues(call: KernelCall) -> list[int]:
    matrix = call.args[0]
    is_large = matrix.shape[-1] >= _FEWEST_ROWS_OF_SYEVD
    return [_MATRICES_OF_SYEVD * matrix.nbytes] if _is_single(matrix) and is_large else []


def _first_factor(call: KernelCall) -> list[int]:
    matrix = call.args[0]
    return [int(_SHARE_OF_GEQRF * matrix.nbytes)] if _is_single(matrix) else []


def copied_factors(call: KernelCall) -> list[int]:
    """Bytes of the copies of a product's factors, the second before the first, that cuBLAS cannot
    read as they lie (bmm_out_cuda_impl and cublasCommonArgs in aten/src/ATen/native/cuda/Blas.cpp);
    they are there before its workspace.
    """
    if call.name not in _COPIES_FACTORS:
        return []
    factors = call.args[-1], call.args[-2]
    return [factor.nbytes for factor in factors if _is_copied(factor)]


def _is_copied(factor: Any) -> bool:
    """Whether neither rows nor columns lie one after the other, or the conjugate would have to be
    taken of rows: cuBLAS takes it of what it transposes.
    """
    if factor.layout is not torch.strided or not factor.numel():
        return False
    (rows, columns), (by_row, by_column) = factor.shape[-2:], factor.stride()[-2:]
    if by_column == 1 and by_row >= columns:
        return bool(factor.is_conj())
    if by_row == 1 and by_column >= rows:
        return False
    return bool(factor.is_conj()) or not (factor.is_contiguous() and by_row and by_column)


RULES: dict[str, Rule] = {
    "aten._linalg_solve_ex": _solution,
    "aten.linalg_lu_solve": _solution,
    "aten.linalg_inv_ex": _inverse,
    "aten._linalg_eigh": _eigenvalues,
    "aten._linalg_svd": _copy_and(2.1),
    "aten.linalg_lstsq": _copy_and(2.3),
    "aten.linalg_qr": _first_factor,
    "aten.geqrf": _first_factor,
    "aten.linalg_lu": lambda call: [call.args[0].nbytes],
    "aten.cholesky_inverse": lambda call: [call.args[0].nbytes],
    "aten._cholesky_solve_helper": lambda call: [call.args[1].nbytes],
}
