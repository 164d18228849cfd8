"""Solved systems and factorizations: which of them work with cuBLAS, and what a solution by an LU
factorization holds meanwhile.

aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp (lu_factor, lu_solve_kernel) and
BatchLinearAlgebraLibBlas.cpp, whose handle brings its workspace. The recording of ``newton_beam`` on
an H100 shows the requests of 512 systems of 160 unknowns. cuSOLVER's own workspaces are not modeled.
"""

from __future__ import annotations

import math
from typing import Any

from vramlens.prediction.requests.request_log import RequestLog

BASIS = "workspaces of matrix factorizations, which are not modeled"
SHARE = 0.1
_NAMES = ("aten.linalg_", "aten.cholesky", "aten.triangular_solve", "aten._linalg_")
_SOLVED_BY_LU = {"aten._linalg_solve_ex", "aten.linalg_lu_solve", "aten.linalg_inv_ex"}
_TRIANGULAR = {"aten.linalg_solve_triangular", "aten.triangular_solve"}
_FACTORED = {"aten.linalg_lu_factor_ex", "aten.linalg_lu_factor", "aten.linalg_lu"}
_ROWS_OF_CUSOLVER = 512
_MOST_ROWS_IN_ONE_CALL = 128
_INDEX_BYTES = 8


def is_factorization(name: str) -> bool:
    """Whether an operator factors a matrix or solves a system."""
    return name.startswith(_NAMES) and "norm" not in name


def works_with_cublas(name: str, args: Any) -> bool:
    """Whether an operator takes cuBLAS' handle."""
    if name in _FACTORED:
        *batch, rows, columns = args[0].shape
        return bool(math.prod(batch) > 1 and rows == columns < _ROWS_OF_CUSOLVER)
    return name in _SOLVED_BY_LU or name in _TRIANGULAR


def note_solution(log: RequestLog, name: str, args: Any, outputs: list[Any]) -> None:
    """What a solution by an LU factorization holds: two permutations, and the right side twice."""
    rows = int(args[0].shape[-1])
    if name not in _SOLVED_BY_LU or rows <= _MOST_ROWS_IN_ONE_CALL:
        return
    systems = math.prod(args[0].shape[:-2])
    permutations = [log.allocate(systems * rows * _INDEX_BYTES) for _ in range(2)]
    right_sides = [log.allocate(outputs[0].nbytes) for _ in range(2)]
    for row in (*right_sides, *permutations):
        log.free(row)
