"""Products, solved systems and factorizations: cuBLAS' workspaces, and what a solution holds.

Products: cuBLAS' workspace, once a handle and stream (aten/src/ATen/cuda/CublasHandlePool.cpp); each
thread has a handle of its own. Recordings: 32 MiB on Hopper for each thread, and 1 MiB with a bias.

aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp (lu_factor, lu_solve_kernel) and
BatchLinearAlgebraLibBlas.cpp, whose handle brings its workspace. The recording of ``newton_beam`` on
an H100 shows the requests of 512 systems of 160 unknowns. cuSOLVER's own workspaces are not modeled.
Symmetric eigenvalues: cuSOLVER's syevd, measured on an H200.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from vramlens.prediction.card.cards import Card
from vramlens.prediction.kernels.kernel_call import KernelCall, Rule
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.units import MIB

BASIS = "workspaces of matrix factorizations, which are not modeled"
SHARE = 0.1
_PRODUCTS = {
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.mv", "aten.dot",
    "aten.linear", "aten._addmm_activation",
}  # fmt: skip
_LT_WORKSPACE = MIB
"""cuBLASLt's, for products with a bias (aten/src/ATen/cuda/CUDABlas.cpp, _getWorkspaceSize):
recording of gpt.
"""
_FACTORIZATIONS = ("aten.linalg_", "aten.cholesky", "aten.triangular_solve", "aten._linalg_")
_SOLVED_BY_LU = {"aten._linalg_solve_ex", "aten.linalg_lu_solve", "aten.linalg_inv_ex"}
_TRIANGULAR = {"aten.linalg_solve_triangular", "aten.triangular_solve"}
_FACTORED = {"aten.linalg_lu_factor_ex", "aten.linalg_lu_factor", "aten.linalg_lu"}
_ROWS_OF_CUSOLVER = 512
_MOST_ROWS_IN_ONE_CALL = 128
_INDEX_BYTES = 8
_FEWEST_ROWS_OF_SYEVD, _MATRICES_OF_SYEVD = 512, 4


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
        """By the card (getChosenWorkspaceSize: 4096 KiB x 8 on Hopper, else 4096 KiB x 2 and 16
        KiB x 8).
        """
        return 32 * MIB if self._card.capability[0] >= 9 else 8 * MIB + 128 * 1024


def is_factorization(name: str) -> bool:
    """Whether an operator factors a matrix or solves a system."""
    return name.startswith(_FACTORIZATIONS) and "norm" not in name


def _solves_with_cublas(name: str, args: Any) -> bool:
    if name in _FACTORED:
        *batch, rows, columns = args[0].shape
        return bool(math.prod(batch) > 1 and rows == columns < _ROWS_OF_CUSOLVER)
    return name in _SOLVED_BY_LU or name in _TRIANGULAR


def _solution(call: KernelCall) -> list[int]:
    """What a solution by an LU factorization holds: two permutations, and the right side twice."""
    rows = int(call.args[0].shape[-1])
    if rows <= _MOST_ROWS_IN_ONE_CALL:
        return []
    permutation = math.prod(call.args[0].shape[:-2]) * rows * _INDEX_BYTES
    return [permutation] * 2 + [call.outputs[0].nbytes] * 2


def _eigenvalues(call: KernelCall) -> list[int]:
    matrix = call.args[0]
    is_single = math.prod(matrix.shape[:-2]) == 1
    is_large = matrix.shape[-1] >= _FEWEST_ROWS_OF_SYEVD
    return [_MATRICES_OF_SYEVD * matrix.nbytes] if is_single and is_large else []


RULES: dict[str, Rule] = {
    **dict.fromkeys(_SOLVED_BY_LU, _solution),
    "aten._linalg_eigh": _eigenvalues,
}
