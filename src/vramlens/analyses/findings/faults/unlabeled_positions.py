"""Logits of positions that have no label: a loss leaves them out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import IgnoredLabels
from vramlens.units import KIB, format_size

_LEAST_IGNORED = 0.5
"""Of the positions."""
_LEAST_SHARE = 0.25
"""Of what is in use with the failed request, that is for such positions."""
_LEAST_OF_POSITION = 8 * KIB
"""What logits take for one position: 4,000 words in 16 bits."""
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|predictions)(?:\.decoder)?$|(?:^|\.)(?:head|embed_out)$")
"""How the layer that makes logits is called."""


@after_failure
def unlabeled_positions(scene: Scene) -> Iterator[Finding]:
    """Logits and their gradients for positions without a label that are in use when memory runs out, if
    they are much of all.
    """
    request, failure = scene.ending_request, scene.ending_failure
    labels = None if failure is None else failure.ignored_labels
    if labels is None:
        return
    positions = labels.rows * labels.columns
    share = labels.ignored / positions
    if share < _LEAST_IGNORED:
        return
    rows = _logits(scene, labels)
    sizes = scene.device.allocations.requested_bytes[rows]
    in_use_bytes = int(sizes.sum())
    sizes_in_bits = (*sizes, *(2 * sizes), *(sizes // 2))  # of 16, or of 32
    is_of_logits = request.size_bytes in sizes_in_bits
    in_use_bytes += is_of_logits * request.size_bytes
    saved_bytes = int(in_use_bytes * share)
    if not saved_bytes or saved_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    yield Finding(
        id="unlabeled_positions",
        verdict=Verdict.LIKELY,
        title=f"{share:.0%} of the positions have no label, and logits are made for all:"
        f" {format_size(saved_bytes)}{', with the request that failed,' if is_of_logits else ''}"
        " are for these",
        bytes=saved_bytes,
        place=scene.view.place_of_stack(request.stack),
        evidence=(
            f"{labels.ignored:,} of the {positions:,} labels of the batch are -100, which the loss"
            " leaves out",
        ),
        fix="make logits and the loss of the labeled positions only: keep = labels != -100, then"
        " head(hidden[keep]), where hidden is what the model gives before its head; where it"
        " predicts the next token, keep = labels[:, 1:] != -100 and hidden[:, :-1][keep] (up to"
        f" {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )


def _logits(scene: Scene, labels: IgnoredLabels) -> NDArray[np.int64]:
    """What the model's head, the module around it, and the program outside of modules have made of so many
    numbers for each position.
    """
    modules, rows = scene.view.modules, scene.advice_rows
    heads = [path for path in modules.paths if _HEAD.search(path)]
    makers = {*heads, *(path.rpartition(".")[0] for path in heads)}
    is_maker = np.array(["." not in path or path in makers for path in (*modules.paths, "")])
    is_of_head = is_maker[modules.module[rows]] & ~scene.view.names.placed[rows]
    is_of_head &= scene.view.phases.phase[rows] != Phase.OPTIMIZER
    sizes = scene.device.allocations.requested_bytes[rows]
    return np.asarray(rows[is_of_head & _is_of_positions(sizes, labels)])


def _is_of_positions(sizes: NDArray[np.int64], labels: IgnoredLabels) -> NDArray[np.bool_]:
    """One flag a size: whether it is that of so many numbers for each position; a language model's loss
    may leave the last position of each row out.
    """
    is_such = np.zeros(len(sizes), np.bool_)
    for columns in (labels.columns, labels.columns - 1):
        positions = max(1, labels.rows * columns)
        is_such |= (sizes % positions == 0) & (sizes >= _LEAST_OF_POSITION * positions)
    return is_such
