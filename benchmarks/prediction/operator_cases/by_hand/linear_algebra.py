"""Products, factorizations, Fourier transforms and sparse products."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

Build = Callable[[Any], tuple[Any, ...]]

_SIZES = {"small": (512, 16, 16), "middle": (16, 128, 128), "large": (1024, 1024)}


def _einsum(equation: str, *shapes: tuple[int, ...]) -> Build:
    return lambda t: (lambda *x: torch.einsum(equation, *x), *(t(*shape) for shape in shapes))


def _positive(function: Callable[[Any], Any], size: str) -> Build:
    return lambda t: (function, t.positive(*_SIZES[size]))


def _regular(function: Callable[[Any], Any], size: str) -> Build:
    return lambda t: (function, t.regular(*_SIZES[size]))


def _solved(function: Callable[[Any, Any], Any], size: str, columns: int = 8) -> Build:
    shape = _SIZES[size]
    return lambda t: (function, t.positive(*shape), t(*shape[:-1], columns))


def _triangular(t: Any, size: str) -> Any:
    return t.positive(*_SIZES[size]).detach().tril().requires_grad_()


def _fourier(function: Callable[..., Any], *shape: int) -> Build:
    return lambda t: (function, t(*shape))


def _back(function: Callable[..., Any], *shape: int) -> Build:
    return lambda t: (function, t(*shape, dtype=torch.complex64))


def _sparse(t: Any) -> Any:
    places = torch.stack((t.whole(4096, 200000), t.whole(4096, 200000)))
    values = torch.ones(200000, device=t.device, dtype=t.dtype)
    return torch.sparse_coo_tensor(places, values, (4096, 4096)).coalesce()


def _of_sparse(function: Callable[[Any, Any], Any]) -> Build:
    return lambda t: (function, _sparse(t), t(4096, 256))


def _sparse_rows(t: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _sparse(t).to_sparse_csr()


_OF_POSITIVE: dict[str, Callable[[Any], Any]] = {
    "cholesky": torch.linalg.cholesky,
    "eigh": torch.linalg.eigh,
    "eigvalsh": torch.linalg.eigvalsh,
    "cholesky_inverse": lambda x: torch.cholesky_inverse(x.tril()),
}
_OF_REGULAR: dict[str, Callable[[Any], Any]] = {
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "qr": torch.linalg.qr,
    "svd": lambda x: torch.linalg.svd(x, full_matrices=False),
    "svdvals": torch.linalg.svdvals,
    "pinv": torch.linalg.pinv,
    "lu": torch.linalg.lu,
    "lu_factor": torch.linalg.lu_factor,
    "matrix_exp": torch.linalg.matrix_exp,
    "matrix_power": lambda x: torch.linalg.matrix_power(x, 5),
    "matrix_rank": lambda x: torch.linalg.matrix_rank(x.detach()),
    "norm_2": lambda x: torch.linalg.matrix_norm(x, 2),
    "norm_nuclear": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "cond": lambda x: torch.linalg.cond(x.detach()),
}
_SOLVING: dict[str, Callable[[Any, Any], Any]] = {
    "solve": torch.linalg.solve,
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
    "solve_triangular": lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b).solution,
    "lu_solve": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
}

BOTH: dict[str, Build] = {
    "matmul/matrices": lambda t: (torch.matmul, t(2048, 1024), t(1024, 2048)),
    "matmul/batches": lambda t: (torch.matmul, t(32, 256, 256), t(32, 256, 256)),
    "matmul/heads": lambda t: (lambda q, k: q @ k.mT, t(8, 8, 512, 64), t(8, 8, 512, 64)),
    "matmul/rows_by_matrix": lambda t: (torch.matmul, t(16, 512, 512), t(512, 512)),
    "matmul/broadcast": lambda t: (torch.matmul, t(16, 1, 256, 256), t(1, 4, 256, 256)),
    "matmul/matrix_by_rows": lambda t: (torch.matmul, t(512, 512), t(16, 512, 256)),
    "matmul/vector": lambda t: (torch.matmul, t(4096, 1024), t(1024)),
    "matmul/batches_by_vector": lambda t: (torch.matmul, t(32, 512, 256), t(256)),
    "matmul/transposed": lambda t: (lambda x, y: x.t() @ y, t(4096, 512), t(4096, 512)),
    "mm": lambda t: (torch.mm, t(2048, 1024), t(1024, 1024)),
    "mv": lambda t: (torch.mv, t(4096, 1024), t(1024)),
    "bmm": lambda t: (torch.bmm, t(32, 256, 256), t(32, 256, 256)),
    "baddbmm": lambda t: (torch.baddbmm, t(32, 256, 256), t(32, 256, 128), t(32, 128, 256)),
    "baddbmm/broadcast": lambda t: (torch.baddbmm, t(32, 1, 256), t(32, 256, 128), t(32, 128, 256)),
    "addmm": lambda t: (torch.addmm, t(1024), t(4096, 512), t(512, 1024)),
    "addmm/matrix": lambda t: (torch.addmm, t(4096, 1024), t(4096, 512), t(512, 1024)),
    "addbmm": lambda t: (torch.addbmm, t(256, 256), t(32, 256, 256), t(32, 256, 256)),
    "outer": lambda t: (torch.outer, t(2048), t(1024)),
    "kron": lambda t: (torch.kron, t(64, 64), t(32, 32)),
    "tensordot": lambda t: (
        lambda x, y: torch.tensordot(x, y, dims=([1], [0])), t(16, 256, 256), t(256, 512),
    ),
    "multi_dot": lambda t: (
        lambda *x: torch.linalg.multi_dot(x), t(1024, 512), t(512, 2048), t(2048, 256),
    ),
    "chain_matmul": lambda t: (lambda x, y, z: x @ y @ z, t(1024, 512), t(512, 2048), t(2048, 256)),
    "cross": lambda t: (torch.linalg.cross, t(500000, 3), t(500000, 3)),
    "einsum/scores": _einsum("bhid,bhjd->bhij", (8, 8, 256, 64), (8, 8, 256, 64)),
    "einsum/values": _einsum("bhij,bjhd->bihd", (8, 8, 256, 256), (8, 256, 8, 64)),
    "einsum/projection": _einsum("bnd,hde->bhne", (8, 256, 256), (8, 256, 64)),
    "einsum/outer": _einsum("bi,bj->bij", (256, 128), (256, 128)),
    "einsum/three": _einsum("bi,ij,bj->b", (4096, 256), (256, 256), (4096, 256)),
    "einsum/sum": _einsum("bij->bj", (64, 256, 256)),
    "einsum/diagonal": _einsum("bii->bi", (64, 256, 256)),
    "einsum/experts": _einsum("ecd,edh->ech", (8, 512, 256), (8, 256, 512)),
    "einsum/graph": _einsum("nctv,vw->nctw", (16, 64, 64, 32), (32, 32)),
    "cumulative_products": lambda t: (
        lambda x, y: torch.linalg.multi_dot((x, y, x, y)), t(512, 512), t(512, 512),
    ),
}  # fmt: skip

SINGLE: dict[str, Build] = {
    **{
        f"{name}/{size}": _positive(function, size)
        for name, function in _OF_POSITIVE.items()
        for size in _SIZES
    },
    **{
        f"{name}/{size}": _regular(function, size)
        for name, function in _OF_REGULAR.items()
        for size in _SIZES
    },
    **{
        f"{name}/{size}": _solved(function, size)
        for name, function in _SOLVING.items()
        for size in _SIZES
    },
    "solve/many": _solved(torch.linalg.solve, "large", columns=1024),
    "solve/vector": lambda t: (torch.linalg.solve, t.positive(1024, 1024), t(1024)),
    "eig": lambda t: (lambda x: torch.linalg.eig(x)[0], t.regular(256, 256)),
    "vander": lambda t: (torch.linalg.vander, t(4096, 128)),
    "qr/tall": lambda t: (torch.linalg.qr, t(4096, 128)),
    "svd/tall": lambda t: (lambda x: torch.linalg.svd(x, full_matrices=False), t(4096, 128)),
    "svd/wide": lambda t: (lambda x: torch.linalg.svd(x, full_matrices=False), t(128, 4096)),
    "lstsq/tall": lambda t: (lambda a, b: torch.linalg.lstsq(a, b).solution, t(4096, 128), t(4096, 8)),
    "svd_lowrank": lambda t: (lambda x: torch.svd_lowrank(x, 16), t(2048, 512)),
    "pca_lowrank": lambda t: (lambda x: torch.pca_lowrank(x, 16), t(2048, 512)),
    "householder": lambda t: (torch.linalg.householder_product, t(16, 128, 64), t(16, 64)),
    "multivariate_normal": lambda t: (
        lambda m, c: torch.distributions.MultivariateNormal(m, c).rsample((1000,)),
        t(256), t.positive(256, 256),
    ),
    "multivariate_normal/log_prob": lambda t: (
        lambda m, c, x: torch.distributions.MultivariateNormal(m, c).log_prob(x).sum(),
        t(128), t.positive(128, 128), t.plain(4096, 128),
    ),
    "logdet": lambda t: (torch.logdet, t.positive(512, 512)),
    "mahalanobis": lambda t: (
        lambda x, c: (torch.linalg.solve(c, x.mT) * x.mT).sum(0), t(4096, 128), t.positive(128, 128),
    ),
    "fft": _fourier(torch.fft.fft, 512, 4096),
    "fft/odd": _fourier(torch.fft.fft, 512, 3989),
    "fft/columns": _fourier(lambda x: torch.fft.fft(x, dim=0), 4096, 512),
    "rfft": _fourier(torch.fft.rfft, 512, 4096),
    "rfft2": _fourier(torch.fft.rfft2, 16, 32, 64, 64),
    "fft2": _fourier(torch.fft.fft2, 16, 32, 64, 64),
    "fftn": _fourier(torch.fft.fftn, 16, 64, 64, 32),
    "fftshift": _fourier(torch.fft.fftshift, 512, 4096),
    "ifft": _back(torch.fft.ifft, 512, 2048),
    "irfft": _back(torch.fft.irfft, 512, 2049),
    "irfft2": _back(torch.fft.irfft2, 16, 32, 64, 33),
    "hfft": _back(torch.fft.hfft, 512, 1025),
    "stft": lambda t: (
        lambda x: torch.stft(x, 512, 128, window=torch.hann_window(512, device=x.device),
                             return_complex=True).abs(),
        t(16, 64000),
    ),
    "istft": lambda t: (
        lambda x: torch.istft(x, 512, 128, window=torch.hann_window(512, device=x.device)),
        t(16, 257, 400, dtype=torch.complex64),
    ),
    "fft_filter": lambda t: (
        lambda x, w: torch.fft.irfft(torch.fft.rfft(x, dim=1) * w, n=256, dim=1),
        t(32, 256, 256), t(129, 256, dtype=torch.complex64),
    ),
    "fft_convolution": lambda t: (
        lambda x, k: torch.fft.irfft(torch.fft.rfft(x, 4096) * torch.fft.rfft(k, 4096), 4096),
        t(8, 64, 2048), t(64, 2048),
    ),
    "complex_matmul": lambda t: (
        torch.matmul, t(1024, 512, dtype=torch.complex64), t(512, 1024, dtype=torch.complex64),
    ),
    "complex_exp": lambda t: (lambda x: (x * 1j).exp().real, t(4096, 512)),
    "sparse_mm": _of_sparse(torch.sparse.mm),
    "sparse_mm/method": _of_sparse(lambda a, x: a @ x),
    "sparse_coalesce": lambda t: (
        lambda i, v: torch.sparse_coo_tensor(i, v, (4096, 4096)).coalesce().values(),
        torch.stack((t.whole(4096, 200000), t.whole(4096, 200000))), t(200000),
    ),
    "sparse_to_dense": lambda t: (lambda a: a.to_dense(), _sparse(t)),
    "sparse_from_dense": lambda t: (lambda x: (x * (x > 1)).to_sparse(), t.plain(1024, 1024)),
    "sparse_softmax": lambda t: (lambda a: torch.sparse.softmax(a, 1), _sparse(t)),
    "sparse_sum": lambda t: (lambda a: torch.sparse.sum(a, 1), _sparse(t)),
    "sparse_rows_mm": lambda t: (lambda a, x: a @ x, _sparse_rows(t), t(4096, 256)),
    "sparse_built_mm": lambda t: (
        lambda i, v, x: torch.sparse.mm(torch.sparse_coo_tensor(i, v, (4096, 4096)), x),
        torch.stack((t.whole(4096, 200000), t.whole(4096, 200000))), t(200000), t(4096, 256),
    ),
}  # fmt: skip
