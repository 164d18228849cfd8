"""A checkpoint that was loaded to the GPU, or a snapshot that was copied there, beside the model that has its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import deep_copy_rows, loading_rows
from vramlens.analyses.attribution.names import LAST_KEY
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_LEAST_SHARE = 0.1
_OF_OPTIMIZER = re.compile(
    r"\['(?:exp_avg(?:_sq)?|max_exp_avg_sq|momentum_buffer|square_avg|step)'\]$"
)
_COPIES = re.compile(r"\bdeepcopy\(|\.clone\(")


@after_failure
def kept_checkpoint(scene: Scene) -> Iterator[Finding]:
    """What a load, or a copy of their state, left on the GPU that is of no model, by keys as a model's and an
    optimizer's state have them.
    """
    rows, keys = scene.program_rows, _keys_of_parameters(scene)
    is_state = [_is_of_state(scene.view.names.name(row), keys) for row in rows.tolist()]
    rows = rows[np.array(is_state, np.bool_)]
    stack, stacks = scene.device.allocations.stack[rows], scene.trace.stacks
    is_copy = deep_copy_rows(stacks, stack) | _are_of_lines_that_copy(scene, rows)
    is_load = loading_rows(stacks, stack) & ~is_copy  # copying a storage is done in the same file
    if _is_much(scene, rows[is_load]):
        yield _finding(
            scene,
            rows[is_load],
            title="a checkpoint that was loaded to the GPU, beside the model that has its own copy",
            evidence=("its keys are those of the model's parameters and of an optimizer's state",),
            fix='load it to the CPU, torch.load(path, map_location="cpu"): load_state_dict() copies to the GPU what'
            " the model and the optimizer need; or delete it once they have loaded it (about"
            " {size} less)",
        )
    if _is_much(scene, rows[is_copy]):
        yield _finding(
            scene,
            rows[is_copy],
            title="a copy of the optimizer's state, and of the weights with it, on the GPU",
            evidence=(
                "its keys are those of an optimizer's state; nothing computes with it",
                "while a new copy is made, the earlier copy is still there",
            ),
            fix='keep the copy on the CPU: t.detach().to("cpu", copy=True) of each tensor in place of deepcopy() or'
            " clone() (about {size} less); or copy into the tensors of the first one with copy_(),"
            " which needs no second one",
        )


def _is_much(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether an optimizer's state is among them, and they are enough: weights alone may be an average, or a
    reference, that each step needs.
    """
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    has_optimizer = any(_OF_OPTIMIZER.search(names.name(row)) for row in rows.tolist())
    return has_optimizer and sizes[rows].sum() >= _LEAST_SHARE * scene.advice_heap.requested_bytes


def _are_of_lines_that_copy(scene: Scene, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """One flag an allocation: whether the text of its line copies."""
    frames = scene.view.phases.frame[rows]
    places = {frame: scene.view.place(frame) for frame in np.unique(frames).tolist()}
    copying = [frame for frame, place in places.items() if _COPIES.search(scene.source_of(place))]
    return np.isin(frames, copying)


def _finding(
    scene: Scene, rows: NDArray[np.int64], *, title: str, evidence: tuple[str, ...], fix: str
) -> Finding:
    """What is said of these allocations.

    Args:
        title: what they are.
        fix: with ``{size}`` where theirs belongs.
    """
    allocations = scene.device.allocations
    size_bytes = scene.bytes_of(rows)
    return Finding(
        id="kept_checkpoint",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are {title}",
        bytes=size_bytes,
        place=scene.view.place_of_block(allocations.largest_of(rows)),
        evidence=evidence,
        fix=fix.format(size=format_size(size_bytes)),
        extent=scene.extent(rows),
    )


def _keys_of_parameters(scene: Scene) -> frozenset[str]:
    """The names of the parameters without the model's own, as a state dict has them."""
    names = scene.view.names
    rows = names.of_kind(TensorKind.PARAMETER).tolist()
    return frozenset(names.name(row).partition(".")[2] for row in rows) - {""}


def _is_of_state(name: str, keys: frozenset[str]) -> bool:
    """Whether an entry's last key is one of an optimizer's state, or the name of a parameter."""
    last = LAST_KEY.search(name)
    return _OF_OPTIMIZER.search(name) is not None or (last is not None and last["key"] in keys)
