"""Indexing, joining and splitting, sorting, and what selects by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Build = Callable[[Any], tuple[Any, ...]]

_ROWS, _WIDTH = 8192, 256


def _rows(function: Callable[[Any], Any]) -> Build:
    """A function of one tensor of 8192 x 256 numbers."""
    return lambda t: (function, t(_ROWS, _WIDTH))


def _copied(function: Callable[..., Any], *others: Callable[[Any], Any]) -> Build:
    """What changes its first argument in place: a copy of 8192 x 256 numbers is given."""

    def build(t: Any) -> tuple[Any, ...]:
        return (
            lambda x, *rest: function(x.clone(), *rest), t(_ROWS, _WIDTH),
            *(other(t) for other in others),
        )  # fmt: skip

    return build


def _assigned(target: Any, index: Any, value: Any) -> Any:
    target[index] = value
    return target


def _added(target: Any, index: Any, value: Any) -> Any:
    target[index] += value
    return target


def _scatter_reduce(kind: str) -> Build:
    return lambda t: (
        lambda x, i, s: x.scatter_reduce(0, i, s, kind),
        t(2048, _WIDTH), t.whole(2048, _ROWS, _WIDTH), t(_ROWS, _WIDTH),
    )  # fmt: skip


def _segment(t: Any) -> tuple[Any, ...]:
    lengths = torch.full((512,), 16).to(t.device)
    return lambda x: torch.segment_reduce(x, "sum", lengths=lengths, axis=0), t(_ROWS, _WIDTH)


BOTH: dict[str, Build] = {
    "cat/rows": lambda t: (lambda x, y: torch.cat([x, y]), t(_ROWS, _WIDTH), t(_ROWS, _WIDTH)),
    "cat/columns": lambda t: (lambda x, y: torch.cat([x, y], 1), t(_ROWS, _WIDTH), t(_ROWS, 64)),
    "cat/many": lambda t: (lambda *x: torch.cat(x, 1), *(t(1024, 64) for _ in range(40))),
    "cat/images": lambda t: (
        lambda x, y: torch.cat([x, y], 1), t(8, 64, 64, 64), t(8, 32, 64, 64),
    ),
    "cat/channels_last": lambda t: (
        lambda x, y: torch.cat([x, y], 1), t.last(8, 64, 64, 64), t.last(8, 32, 64, 64),
    ),
    "stack": lambda t: (lambda *x: torch.stack(x), *(t(512, _WIDTH) for _ in range(12))),
    "stack/last": lambda t: (lambda *x: torch.stack(x, -1), *(t(512, _WIDTH) for _ in range(12))),
    "hstack": lambda t: (lambda x, y: torch.hstack([x, y]), t(_ROWS, _WIDTH), t(_ROWS, 64)),
    "split": _rows(lambda x: [part * 2 for part in x.split(1024)]),
    "chunk": _rows(lambda x: torch.mul(*x.chunk(2, -1))),
    "unbind": _rows(lambda x: [part.sum() for part in x[:64].unbind()]),
    "tensor_split": _rows(lambda x: torch.tensor_split(x, 3)[1].exp()),
    "repeat": _rows(lambda x: x.repeat(2, 2)),
    "tile": _rows(lambda x: x.tile(2)),
    "expand/contiguous": lambda t: (lambda x: x[:, None].expand(-1, 8, -1).contiguous(), t(2048, 256)),
    "repeat_interleave/number": _rows(lambda x: x.repeat_interleave(3, 0)),
    "repeat_interleave/columns": _rows(lambda x: x.repeat_interleave(2, dim=-1)),
    "repeat_interleave/tensor": lambda t: (
        lambda x, n: x.repeat_interleave(n, 0), t(2048, _WIDTH), t.whole(8, 2048),
    ),
    "repeat_interleave/known_size": lambda t: (
        lambda x, n: x.repeat_interleave(n, 0, output_size=8192),
        t(2048, _WIDTH), torch.full((2048,), 4).to(t.device),
    ),
    "roll": _rows(lambda x: x.roll(3, 0)),
    "roll/two": lambda t: (lambda x: x.roll((3, 3), (1, 2)), t(16, 56, 56, 96)),
    "flip": _rows(lambda x: x.flip(0)),
    "rot90": _rows(lambda x: x.rot90()),
    "transpose/contiguous": _rows(lambda x: x.t().contiguous()),
    "permute/reshape": lambda t: (
        lambda x: x.permute(0, 2, 1, 3).reshape(16, 256, 512), t(16, 8, 256, 64),
    ),
    "to_channels_last": lambda t: (
        lambda x: x.to(memory_format=torch.channels_last), t(16, 64, 64, 64),
    ),
    "tril": _rows(lambda x: x.tril()),
    "triu": _rows(lambda x: x.triu(1)),
    "diag_embed": lambda t: (torch.diag_embed, t(64, 256)),
    "diagonal": lambda t: (lambda x: x.diagonal(dim1=-2, dim2=-1) * 2, t(64, 256, 256)),
    "block_diag": lambda t: (torch.block_diag, *(t(256, 256) for _ in range(8))),
    "index/rows": lambda t: (lambda x, i: x[i], t(_ROWS, _WIDTH), t.whole(_ROWS, 4096)),
    "index/columns": lambda t: (lambda x, i: x[:, i], t(_ROWS, _WIDTH), t.whole(_WIDTH, 100)),
    "index/pairs": lambda t: (
        lambda x, i, j: x[i, j], t(_ROWS, _WIDTH), t.whole(_ROWS, 500000), t.whole(_WIDTH, 500000),
    ),
    "index/labels": lambda t: (
        lambda x, i: x[torch.arange(4096, device=x.device), i], t(4096, 1000), t.whole(1000, 4096),
    ),
    "index/batch": lambda t: (
        lambda x, i: x[torch.arange(32, device=x.device)[:, None], i],
        t(32, 512, _WIDTH), t.whole(512, 32, 128),
    ),
    "index/mask_rows": lambda t: (lambda x, m: x[m], t(_ROWS, _WIDTH), t.mask(_ROWS)),
    "index/mask_all": lambda t: (lambda x, m: x[m], t(_ROWS, _WIDTH), t.mask(_ROWS, _WIDTH)),
    "index/mask_computed": _rows(lambda x: x[x > 0]),
    "index/mask_rows_computed": _rows(lambda x: x[x[:, 0] > 0]),
    "index/steps": _rows(lambda x: x[::2, ::2] * 2),
    "index_select": lambda t: (
        lambda x, i: x.index_select(0, i), t(_ROWS, _WIDTH), t.whole(_ROWS, 4096),
    ),
    "index_select/columns": lambda t: (
        lambda x, i: x.index_select(1, i), t(_ROWS, _WIDTH), t.whole(_WIDTH, 100),
    ),
    "gather": lambda t: (lambda x, i: x.gather(1, i), t(_ROWS, _WIDTH), t.whole(_WIDTH, _ROWS, 100)),
    "gather/one": lambda t: (lambda x, i: x.gather(1, i), t(4096, 1000), t.whole(1000, 4096, 1)),
    "take": lambda t: (lambda x, i: x.take(i), t(_ROWS, _WIDTH), t.whole(_ROWS * _WIDTH, 500000)),
    "take_along_dim": lambda t: (
        lambda x, i: x.take_along_dim(i, 1), t(_ROWS, _WIDTH), t.whole(_WIDTH, _ROWS, 64),
    ),
    "masked_select": lambda t: (torch.masked_select, t(_ROWS, _WIDTH), t.mask(_ROWS, _WIDTH)),
    "masked_fill": lambda t: (
        lambda x, m: x.masked_fill(m, -1e4), t(_ROWS, _WIDTH), t.mask(_ROWS, _WIDTH),
    ),
    "masked_fill/broadcast": lambda t: (
        lambda x, m: x.masked_fill(m, -1e4), t(8, 8, 256, 256), t.mask(8, 1, 1, 256),
    ),
    "masked_scatter": lambda t: (
        lambda x, m, s: x.masked_scatter(m, s),
        t(_ROWS, _WIDTH), t.mask(_ROWS, _WIDTH), t(_ROWS, _WIDTH),
    ),
    "where": lambda t: (
        torch.where, t.mask(_ROWS, _WIDTH), t(_ROWS, _WIDTH), t(_ROWS, _WIDTH),
    ),
    "where/number": lambda t: (
        lambda m, x: torch.where(m, x, 0.0), t.mask(_ROWS, _WIDTH), t(_ROWS, _WIDTH),
    ),
    "where/positions": _rows(lambda x: torch.where(x > 0)),
    "nonzero/known": lambda t: (torch.nonzero, t.mask(_ROWS, _WIDTH, share=0.2)),
    "nonzero/computed": _rows(lambda x: (x > 0).nonzero()),
    "nonzero/tuple": lambda t: (lambda m: m.nonzero(as_tuple=True), t.mask(_ROWS, _WIDTH)),
    "argwhere": _rows(lambda x: torch.argwhere(x > 1.0)),
    "scatter": lambda t: (
        lambda x, i, s: x.scatter(1, i, s),
        t(_ROWS, _WIDTH), t.whole(_WIDTH, _ROWS, 64), t(_ROWS, 64),
    ),
    "scatter/number": lambda t: (
        lambda x, i: x.scatter(1, i, 1.0), t(_ROWS, _WIDTH), t.whole(_WIDTH, _ROWS, 1),
    ),
    "scatter_add": lambda t: (
        lambda x, i, s: x.scatter_add(0, i, s),
        t(2048, _WIDTH), t.whole(2048, _ROWS, _WIDTH), t(_ROWS, _WIDTH),
    ),
    "scatter_reduce/sum": _scatter_reduce("sum"),
    "scatter_reduce/mean": _scatter_reduce("mean"),
    "scatter_reduce/amax": _scatter_reduce("amax"),
    "scatter_reduce/prod": _scatter_reduce("prod"),
    "index_add": lambda t: (
        lambda x, i, s: x.index_add(0, i, s),
        t(2048, _WIDTH), t.whole(2048, _ROWS), t(_ROWS, _WIDTH),
    ),
    "index_add_/zeros": lambda t: (
        lambda i, s: torch.zeros(2048, _WIDTH, device=s.device, dtype=s.dtype).index_add_(0, i, s),
        t.whole(2048, _ROWS), t(_ROWS, _WIDTH),
    ),
    "index_copy": lambda t: (
        lambda x, i, s: x.index_copy(0, i, s), t(_ROWS, _WIDTH), t.order(2048), t(2048, _WIDTH),
    ),
    "index_fill": lambda t: (
        lambda x, i: x.index_fill(0, i, 1.0), t(_ROWS, _WIDTH), t.order(2048),
    ),
    "index_reduce": lambda t: (
        lambda x, i, s: x.index_reduce(0, i, s, "mean"),
        t(2048, _WIDTH), t.whole(2048, _ROWS), t(_ROWS, _WIDTH),
    ),
    "index_put": lambda t: (
        lambda x, i, s: x.index_put((i,), s), t(_ROWS, _WIDTH), t.whole(_ROWS, 2048), t(2048, _WIDTH),
    ),
    "index_put/accumulate": lambda t: (
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        t(2048, _WIDTH), t.whole(2048, _ROWS), t(_ROWS, _WIDTH),
    ),
    "put": lambda t: (
        lambda x, i, s: x.put(i, s), t(_ROWS, _WIDTH), t.order(100000), t(100000),
    ),
    "assign/rows": _copied(_assigned, lambda t: t.order(2048), lambda t: t(2048, _WIDTH)),
    "assign/mask": _copied(_assigned, lambda t: t.mask(_ROWS), lambda t: t(1, _WIDTH)),
    "assign/mask_number": _copied(
        lambda x, m: _assigned(x, m, 0.0), lambda t: t.mask(_ROWS, _WIDTH)
    ),
    "assign/slice": _copied(lambda x, y: _assigned(x, slice(0, 2048), y), lambda t: t(2048, _WIDTH)),
    "assign/add": _copied(_added, lambda t: t.order(2048), lambda t: t(2048, _WIDTH)),
    "select_scatter": lambda t: (
        lambda x, s: torch.select_scatter(x, s, 0, 3), t(_ROWS, _WIDTH), t(_WIDTH),
    ),
    "slice_scatter": lambda t: (
        lambda x, s: torch.slice_scatter(x, s, 0, 0, 2048), t(_ROWS, _WIDTH), t(2048, _WIDTH),
    ),
    "sort": _rows(lambda x: x.sort(-1)),
    "sort/columns": _rows(lambda x: x.sort(0)),
    "sort/long": lambda t: (torch.sort, t(2000000)),
    "sort/long_rows": lambda t: (lambda x: x.sort(-1), t(64, 32000)),
    "sort/descending": lambda t: (lambda x: x.sort(-1, descending=True), t(64, 32000)),
    "argsort": _rows(lambda x: x.argsort(-1)),
    "msort": _rows(torch.msort),
    "topk": _rows(lambda x: x.topk(10)),
    "topk/words": lambda t: (lambda x: x.topk(50), t(64, 32000)),
    "topk/long": lambda t: (lambda x: x.topk(1000), t(2000000)),
    "topk/columns": _rows(lambda x: x.topk(10, 0)),
    "topk/many": lambda t: (lambda x: x.topk(2000), t(64, 32000)),
    "kthvalue": _rows(lambda x: x.kthvalue(5)),
    "searchsorted": lambda t: (
        lambda x: torch.searchsorted(torch.linspace(-3, 3, 1000, device=x.device, dtype=x.dtype), x),
        t.plain(_ROWS, _WIDTH),
    ),
    "unfold/method": _rows(lambda x: x.unfold(0, 128, 64) * 2),
    "meshgrid": lambda t: (
        lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij"), -1), t(1024), t(1024),
    ),
    "cartesian_prod": lambda t: (torch.cartesian_prod, t(1024), t(1024)),
    "multinomial": lambda t: (
        lambda x: x.softmax(-1).multinomial(4, replacement=True), t.plain(64, 32000),
    ),
    "multinomial/once": lambda t: (lambda x: x.softmax(-1).multinomial(1), t.plain(64, 32000)),
    "multinomial/without": lambda t: (lambda x: x.softmax(-1).multinomial(16), t.plain(64, 32000)),
    "segment_reduce": _segment,
    "pad_sequence": lambda t: (
        lambda *x: torch.nn.utils.rnn.pad_sequence(x, batch_first=True),
        *(t(length, _WIDTH) for length in range(100, 600, 25)),
    ),
    "top_p": lambda t: (
        lambda x: x.masked_fill(
            (x.sort(-1, descending=True)[0].softmax(-1).cumsum(-1) > 0.9).scatter(
                1, x.argsort(-1, descending=True), True
            ),
            float("-inf"),
        ),
        t.plain(64, 32000),
    ),
}  # fmt: skip

SINGLE: dict[str, Build] = {
    "unique/integers": lambda t: (torch.unique, t.whole(5000, 1000000)),
    "unique/counts": lambda t: (
        lambda i: torch.unique(i, return_inverse=True, return_counts=True), t.whole(5000, 1000000),
    ),
    "unique/unsorted": lambda t: (lambda i: torch.unique(i, sorted=False), t.whole(5000, 1000000)),
    "unique/rows": lambda t: (
        lambda i: torch.unique(i, dim=0, return_inverse=True), t.whole(10, 100000, 3),
    ),
    "unique/computed": lambda t: (lambda x: torch.unique(x.round()), t.plain(1000000)),
    "unique_consecutive": lambda t: (
        lambda i: torch.unique_consecutive(i, return_counts=True), t.whole(3, 1000000),
    ),
    "bincount": lambda t: (torch.bincount, t.whole(100000, 1000000)),
    "bincount/least": lambda t: (lambda i: i.bincount(minlength=500000), t.whole(1000, 1000000)),
    "bincount/weights": lambda t: (torch.bincount, t.whole(100000, 1000000), t.plain(1000000)),
    "histc": lambda t: (lambda x: torch.histc(x, 500000), t.plain(1000000)),
    "isin": lambda t: (torch.isin, t.whole(5000, 1000000), t.whole(5000, 1000)),
    "bucketize": lambda t: (
        lambda x: torch.bucketize(x, torch.linspace(-3, 3, 100, device=x.device)), t.plain(1000000),
    ),
    "sort/integers": lambda t: (torch.sort, t.whole(5000, 1000000)),
    "argsort/integers": lambda t: (lambda i: i.argsort(stable=True), t.whole(5000, 1000000)),
    "randperm": lambda t: (lambda: torch.randperm(1000000, device=t.device),),
    "randperm/short": lambda t: (lambda: torch.randperm(20000, device=t.device),),
    "nonzero/integers": lambda t: (torch.nonzero, t.whole(2, 1000000)),
    "count_nonzero": lambda t: (torch.count_nonzero, t.whole(2, 1000000)),
    "index/integers": lambda t: (lambda x, i: x[i], t.whole(9, 1000000), t.whole(1000000, 500000)),
    "tril_indices": lambda t: (lambda: torch.tril_indices(1000, 1000, device=t.device),),
    "combinations": lambda t: (torch.combinations, t(1200)),
    "equal": lambda t: (torch.equal, t.plain(1000000), t.plain(1000000)),
    "allclose": lambda t: (torch.allclose, t.plain(1000000), t.plain(1000000)),
    "masked_mean": lambda t: (
        lambda x, m: (x * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True).clamp(min=1),
        t(64, 256, 256), t.mask(64, 256),
    ),
    "quantile": lambda t: (lambda x: x.quantile(0.9, dim=-1), t(4096, 256)),
    "quantile/several": lambda t: (
        lambda x: x.quantile(torch.tensor([0.1, 0.5], device=x.device), dim=0), t(4096, 256),
    ),
    "nanquantile": lambda t: (lambda x: x.nanquantile(0.5, dim=-1), t(4096, 256)),
}  # fmt: skip
