"""Masks and biases of attention, each a number for every pair of positions, that each layer builds anew."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place, base_name
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame, TensorKind
from vramlens.units import format_size

_FEWEST_POSITIONS = 256
"""Of fewer a mask is smaller than what a layer makes of them anyway."""
_FEWEST_LAYERS = 2
_LEAST_SHARE = 0.25
"""Of what is in use, with the failed request."""
_ASSIGNED = re.compile(r"^(?P<name>\w+)\s*=(?!=)\s*(?P<value>.+)")
_SDPA = re.compile(r"\bscaled_dot_product_attention\(")
_LINES_AFTER = 40
"""That made a mask, up to where attention takes it: in one function."""
_OF_TENSOR = re.compile(
    r"\b\w+(?:\.(?:dtype|device|shape(?:\[[^\]]*\])?)\b|\.(?:size|dim|new_\w+|type_as)\([^()]*\))"
)
"""What says only how large a tensor is, and of which type."""
_OF_LAYER = re.compile(
    r"\b(?:x|q|k|v|qkv?|h|query|key|value|queries|keys|values|hidden\w*|tgt|src|z|pair\w*|feats?|features)\b"
    r"|\.weight\b|emb|table|learn|\brel\w*|Parameter|\brand\w*\(|bernoulli|dropout"
    r"|\bself\.(?!(?:slopes|heads|n_?heads?|num_heads|device|dtype)\b)\w+(?![\w(])"
)
"""In a line: what differs from layer to layer."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """What attention is given beside queries, keys and values.

    Attributes:
        frame: the program's call that made it.
        text: of its line.
        taken_at: the line in which attention takes it.
    """

    frame: Frame
    text: str
    taken_at: Place


@after_failure
def repeated_masks(scene: Scene) -> Iterator[Finding]:
    """The masks of one line and shape that several layers keep for the backward pass."""
    groups: defaultdict[tuple[Place, Shape], list[int]] = defaultdict(list)
    masks: dict[Place, _Mask] = {}
    for row, shape in _in_this_pass(scene).items():
        mask = mask_of(scene, row)
        if mask is not None and not _is_of_layer(scene, row, mask):
            place = mask.frame.place
            masks[place] = mask
            groups[place, shape].append(row)
    if not groups:
        return
    sizes = scene.device.allocations.requested_bytes
    place, shape = max(groups, key=lambda key: sizes[groups[key]].sum())
    rows = np.array(groups[place, shape], np.int64)
    size_bytes = scene.bytes_of(rows)
    asked_bytes = _asked_bytes(scene, int(rows[0]))
    count = len(rows) + bool(asked_bytes)
    if count < _FEWEST_LAYERS or size_bytes + asked_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    saved_bytes = size_bytes + asked_bytes - shape.bytes
    taken = masks[place].taken_at
    more = ", and one more was asked for" if asked_bytes else ""
    yield Finding(
        id="repeated_masks",
        verdict=Verdict.LIKELY,
        title=f"{count} layers build the mask or bias of their attention each, and hold"
        f" {format_size(size_bytes)} in {shape} of one line",
        bytes=saved_bytes,
        place=place,
        evidence=(
            f"attention takes it in {base_name(taken.file)}:{taken.line}, and keeps it for the"
            f" backward pass{more}",
        ),
        fix="build it once in each forward pass, before the first layer, and hand the same tensor"
        f" to all layers: up to {format_size(saved_bytes)} less, and one for every layer to come",
        extent=scene.extent(rows),
    )


def mask_of(scene: Scene, row: int) -> _Mask | None:
    """How attention is given a tensor as its mask or bias, by the program's text; None where that does not say so."""
    stack = scene.trace.stacks.of(int(scene.device.allocations.stack[row]))
    for frame in stack:
        text = scene.source_of(frame.place)
        assigned = _ASSIGNED.match(text)
        taken_at = None if assigned is None else _taken_at(scene, frame, assigned["name"])
        if taken_at is not None:
            return _Mask(frame, text, taken_at)
    return None


def is_of_fused_attention(scene: Scene, row: int) -> bool:
    """Whether a line that already calls the fused attention made a tensor."""
    return _SDPA.search(scene.source_of(scene.view.place_of_block(row))) is not None


def _taken_at(scene: Scene, frame: Frame, name: str) -> Place | None:
    """The line after a call in which attention takes the mask of that name; None without."""
    takes = re.compile(
        rf"\battn_mask\s*=\s*{name}\b(?!\s*[.\[(])"
        rf"|{_SDPA.pattern}(?:[^,=()]|\([^()]*\))+(?:,(?:[^,=()]|\([^()]*\))+){{2}},\s*{name}\b"
    )
    for number in range(1, _LINES_AFTER + 1):
        place = Place(frame.file, frame.line + number, frame.function)
        if takes.search(scene.source_of(place)):
            return place
    return None


def _in_this_pass(scene: Scene) -> dict[int, Shape]:
    """The square matrices that the pass under way has made, by row: another pass has other positions."""
    begin = max([scene.last_backward_end, *scene.pass_begins[-1:].tolist()])
    born = scene.device.allocations.born
    return {
        row: shape
        for row, shape in scene.advice_shapes.items()
        if born[row] >= begin
        and len(shape.sizes) > 1
        and shape.sizes[-1] == shape.sizes[-2] >= _FEWEST_POSITIONS
    }


def _is_of_layer(scene: Scene, row: int, mask: _Mask) -> bool:
    """Whether a layer's own weights or states are in its mask, as far as the text and the names tell."""
    value = mask.text.partition("=")[2]
    if _OF_LAYER.search(_OF_TENSOR.sub("", value)):
        return True
    view = scene.view
    made_in = int(view.modules.module[row])
    attending = {
        int(view.modules.module[other])
        for other in scene.advice_rows.tolist()
        if view.place_of_block(other) == mask.taken_at
    }
    if made_in == OUTSIDE or made_in in attending:
        text = scene.source_of(view.place_of_block(row)).partition("=")[2]
        return _OF_LAYER.search(_OF_TENSOR.sub("", text)) is not None
    owner = f"{view.modules.paths[made_in]}."
    parameters = view.names.of_kind(TensorKind.PARAMETER)
    return any(view.names.name(parameter).startswith(owner) for parameter in parameters.tolist())


def _asked_bytes(scene: Scene, row: int) -> int:
    """What the failed request asks for, if that is one more of a row's kind."""
    request_bytes = scene.ending_request.size_bytes
    is_of_line = scene.failed_place == scene.view.place_of_block(row)
    is_alike = request_bytes == scene.device.allocations.requested_bytes[row]
    return request_bytes if is_of_line and is_alike else 0
