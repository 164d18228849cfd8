"""Retry for inference: a stateless function over a batch, in as many chunks as fit."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from vramlens.argument_types import flag, function_given, number_given, optional, takes
from vramlens.capture.warn import Function
from vramlens.recovery.memory_errors import OutOfMemoryCaught
from vramlens.recovery.splitting.batch_parts import BatchSamples, CannotSplit, ranges
from vramlens.recovery.splitting.sample_lists import is_named_tuple

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


@overload
def retry(function: Function) -> Function: ...


@overload
def retry(*, chunk: int | None = None, pool: bool = False) -> Callable[[Function], Function]: ...


@takes(function=function_given, chunk=optional(number_given), pool=flag)
def retry(function: Any = None, *, chunk: int | None = None, pool: bool = False) -> Any:
    """A function that survives out of memory: its first argument is split along dimension 0, the
    results joined.

    For functions without state whose result for a sample does not depend on the others, as
    inference is. The size that worked is kept for later calls (``wrapped.chunk``), and grows back
    by one half after fifty calls that worked.

    Args:
        chunk: samples in a chunk from the start; None: all at once.
        pool: allocate in a pool of its own, so that other work does not fragment what the next
            request reuses.

    Raises:
        torch.OutOfMemoryError: one sample alone does not fit.
        CannotSplit: the argument or the result has no samples along dimension 0; the text names the
            leaf.
    """
    if function is None:
        return functools.partial(retry, chunk=chunk, pool=pool)
    chunked = _Chunked(function, chunk, pool)

    @functools.wraps(function)
    def wrapped(batch: Any, *args: Any, **kwargs: Any) -> Any:
        output = chunked.call(batch, args, kwargs)
        wrapped.chunk = chunked.chunk  # type: ignore[attr-defined]
        return output

    wrapped.chunk = chunk  # type: ignore[attr-defined]
    return wrapped


class _Chunked:
    def __init__(self, function: Callable[..., Any], chunk: int | None, pool: bool) -> None:
        self._function, self.chunk, self._wants_pool = function, chunk, pool
        self._pool: Any = None
        self._worked = 0
        self._failed: int | None = None

    def call(self, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        samples: BatchSamples | None = None
        while True:
            with OutOfMemoryCaught() as caught:
                if self.chunk is None:
                    return self._in_pool(batch, args, kwargs)
                samples = samples or BatchSamples(batch)
                return self._in_chunks(samples, self.chunk, args, kwargs)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            try:
                samples = samples or BatchSamples(batch)
            except CannotSplit as error:
                raise torch.OutOfMemoryError(
                    f"{caught.text}\nvramlens retry: cannot be split: {error}"
                ) from None
            self._halve(samples.count, caught.text)

    def _in_chunks(
        self, samples: BatchSamples, size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        bounds = ranges(samples.count, size)
        results = [self._in_pool(samples.part(a, b), args, kwargs) for a, b in bounds]
        self._grow()
        if len(results) == 1:
            return results[0]
        return joined(results, [stop - start for start, stop in bounds])

    def _halve(self, count: int, text: str) -> None:
        """Has chunks be half as large; raises where one sample alone has failed."""
        size = min(self.chunk or count, count)
        if size <= 1:
            raise torch.OutOfMemoryError(
                f"{text}\nvramlens retry: even a single sample does not fit: use a smaller "
                "sample or a larger GPU"
            )
        self._failed, self.chunk, self._worked = size, -(-size // 2), 0

    def _in_pool(self, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._wants_pool or not torch.cuda.is_available():
            return self._function(batch, *args, **kwargs)
        if self._pool is None:
            self._pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self._pool):
            return self._function(batch, *args, **kwargs)

    def _grow(self) -> None:
        self._worked += 1
        if self._worked >= 50 and self.chunk is not None:
            self._worked = 0
            larger = self.chunk + max(1, self.chunk // 2)
            if self._failed is None or larger < self._failed:
                self.chunk = larger


def joined(results: list[Any], sizes: list[int]) -> Any:
    """Results of chunks as the result of the whole: tensors along dimension 0, dicts, lists and
    tuples leaf by leaf.

    Raises:
        CannotSplit: a leaf has another length than its chunk.
    """
    first = results[0]
    if isinstance(first, torch.Tensor):
        return _concatenated(results, sizes)
    if isinstance(first, dict):
        return type(first)({key: joined([chunk[key] for chunk in results], sizes) for key in first})
    if is_named_tuple(first):
        return type(first)(*_joined_in_turn(results, sizes))
    if isinstance(first, list) and [len(chunk) for chunk in results] == sizes:
        return list(itertools.chain.from_iterable(results))
    if isinstance(first, (list, tuple)):
        return type(first)(_joined_in_turn(results, sizes))
    if all(chunk is None for chunk in results):
        return None
    raise CannotSplit(f"the result is a {type(first).__name__}, which cannot be joined from chunks")


def _joined_in_turn(results: list[Any], sizes: list[int]) -> Iterator[Any]:
    """Yields the first entries of all results joined, then the second ones, and so on."""
    for entries in zip(*results, strict=True):
        yield joined(list(entries), sizes)


def _concatenated(results: list[Any], sizes: list[int]) -> torch.Tensor:
    for chunk, size in zip(results, sizes, strict=True):
        if chunk.dim() == 0 or chunk.shape[0] != size:
            raise CannotSplit(
                f"the result of a chunk of {size} samples has shape {list(chunk.shape)}: it "
                "does not have one row per sample, so chunks cannot be joined"
            )
    return torch.cat(results)
