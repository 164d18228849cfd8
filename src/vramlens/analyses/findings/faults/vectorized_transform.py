"""Transforms that compute for all entries of a batch at once: vmap, Jacobians, Hessians."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK, Frame
from vramlens.trace.stacks import user_frame_of
from vramlens.units import format_size

_CHUNK = (
    "N about a tenth of the samples of a call: the results are the same. Halve N if it still fails"
)
_OF_EACH_SAMPLE = (
    "where only each sample's own outputs by its own inputs are wanted, use"
    " torch.func.vmap(torch.func.{jacobian}(f)) over the samples"
)
_OF_FEW_INPUTS = (
    "where f has fewer inputs than outputs, torch.func.jacfwd(f), with a pass for each input"
    " instead of each output"
)
_DERIVATIVE = re.compile(r"torch[/\\]_functorch[/\\]eager_transforms\.py:")
"""Inside of a vmap: then the transform has its own backward pass, and each chunk gives its memory back."""
_FORWARD = re.compile(r"torch[/\\]_functorch[/\\]eager_transforms\.py:push_jvp$")
_REVERSE = re.compile(r"torch[/\\]_functorch[/\\]eager_transforms\.py:_vjp_with_argnums$")
_LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class _Transform:
    """A transform, with what its own frames look like and how to make it take less."""

    own: re.Pattern[str]
    name: str
    fix: str
    verdict: Verdict = Verdict.LIKELY


_AUTOGRADS = _Transform(
    re.compile(r"torch[/\\]autograd[/\\]functional\.py:(?:jacobian|hessian)$"),
    "torch.autograd.functional's Jacobian",
    f"{_OF_EACH_SAMPLE.format(jacobian='jacrev')}; else torch.func.jacrev(f, chunk_size=N), {_CHUNK}",
)
_VMAP = re.compile(r"torch[/\\]_functorch[/\\]vmap\.py:(?:vmap_impl|_flat_vmap|_chunked_vmap)$")
_JACOBIAN = re.compile(r"torch[/\\]_functorch[/\\]eager_transforms\.py:wrapper_fn$")


@after_failure
def vectorized_transform(scene: Scene) -> Iterator[Finding]:
    """The transform in which memory ran out, if what it makes is much of all."""
    request, newest = scene.ending_request, _newest_with_line(scene)
    if newest is None:
        return
    stacks = scene.trace.stacks
    has_line = scene.view.place_of_stack(request.stack) is not None
    stack = request.stack if has_line else int(scene.device.allocations.stack[newest])
    transform = _outermost(stacks.of(stack))
    if transform is None:
        return
    size_bytes = _made_inside(scene, transform) + request.size_bytes
    if size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    yield Finding(
        id="vectorized_transform",
        verdict=transform.verdict,
        title=f"{transform.name} computes all at once: {format_size(size_bytes)}, with the request"
        " that failed",
        bytes=size_bytes,
        place=_called_at(stacks.of(stack), transform) or scene.view.place_of_block(newest),
        evidence=("memory ran out inside of it",),
        fix=transform.fix,
    )


def _newest_with_line(scene: Scene) -> int | None:
    """The newest request of a line of the program when memory ran out: backward passes run on another
    thread, their requests have no line and follow one that has.
    """
    rows = _rows_with_line(scene)
    return int(rows[-1]) if len(rows) else None


def _rows_with_line(scene: Scene) -> NDArray[np.int64]:
    """What lines of the program asked for before memory ran out."""
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    rows = np.flatnonzero((allocations.stack != NO_STACK) & (allocations.born < scene.advice_event))
    return np.asarray(rows[stacks.user_frame[allocations.stack[rows]] >= 0])


def _outermost(frames: Sequence[Frame]) -> _Transform | None:
    """The outermost transform of a stack, the innermost frame first; None where it goes through none."""
    texts = [f"{frame.file}:{frame.function}" for frame in frames]
    for text in reversed(texts):
        if _AUTOGRADS.own.search(text):
            return _AUTOGRADS
        if _VMAP.search(text):
            return _vmap_over(texts)
        if _JACOBIAN.search(text):
            return _jacobian_by(texts)
    return None


def _called_at(frames: Sequence[Frame], transform: _Transform) -> Place | None:
    """The line of the program that calls a transform, whose frames are in a stack; None without one."""
    own_frames = [
        number
        for number, frame in enumerate(frames)
        if transform.own.search(f"{frame.file}:{frame.function}")
    ]
    caller = user_frame_of(frames[own_frames[-1] + 1 :]) if own_frames else None
    return None if caller is None else caller.place


def _vmap_over(texts: Sequence[str]) -> _Transform:
    """A vmap: sure to take less in chunks where a derivative is inside of it."""
    if any(_DERIVATIVE.search(text) for text in texts):
        return _Transform(_VMAP, "torch.func.vmap", f"pass chunk_size=N to vmap, {_CHUNK}")
    return _Transform(
        _VMAP,
        "torch.func.vmap",
        f"if no backward pass follows, pass chunk_size=N to vmap, {_CHUNK}. If one follows, it"
        " needs the graphs of all chunks",
        Verdict.POSSIBLE,
    )


def _jacobian_by(texts: Sequence[str]) -> _Transform:
    """A Jacobian, forward or in reverse, or a Hessian, which is one of the other."""
    is_forward = any(_FORWARD.search(text) for text in texts)
    is_reverse = any(_REVERSE.search(text) for text in texts)
    if is_forward and is_reverse:
        return _Transform(
            _JACOBIAN,
            "torch.func.hessian",
            f"use torch.func.jacrev(torch.func.jacrev(f), chunk_size=N) in its place, {_CHUNK}",
        )
    if is_forward:
        return _Transform(
            _JACOBIAN,
            "torch.func.jacfwd",
            f"{_OF_EACH_SAMPLE.format(jacobian='jacfwd')}; else torch.func.jacrev(f, chunk_size=N),"
            f" {_CHUNK}",
        )
    return _Transform(
        _JACOBIAN,
        "torch.func.jacrev",
        f"{_OF_EACH_SAMPLE.format(jacobian='jacrev')}; {_OF_FEW_INPUTS}; else pass chunk_size=N to jacrev, {_CHUNK}",
    )


def _made_inside(scene: Scene, transform: _Transform) -> int:
    """The bytes in use that were asked for since the transform began."""
    allocations, rows = scene.device.allocations, _rows_with_line(scene)
    is_outside = ~np.asarray(scene.trace.stacks.within(transform.own, allocations.stack[rows]))
    begins = int(allocations.born[rows[is_outside]].max(initial=0))
    alive = scene.advice_rows
    return scene.bytes_of(alive[allocations.born[alive] > begins])
