"""What a program does already against its use of memory: no advice repeats it."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.named_shapes import shapes_of
from vramlens.analyses.attribution.phases import Phase

CHECKPOINT_FRAME = re.compile(r"torch[/\\]utils[/\\]checkpoint\.py:")
_HALF_TYPES = ("bfloat16", "float16")
_MUCH_IN_HALF = 0.1
"""Of what is named by its type: autocast keeps losses and norms in float32."""
_FEWEST_DIMENSIONS, _FEWEST_ACTIVATIONS = 3, 4
"""Of fewer dimensions the first may be a position's or a feature's."""
_LEAST_WEIGHT_BYTES = 4096
_FEWEST_WEIGHTS = 4
"""Sizes of weights of which each has one half as large in the forward pass: of three, activations
have those by chance (tests/data).
"""


def computes_in_half(view: Attribution) -> bool:
    """Whether the program computes in half precision already: it ran under autocast, or much of
    what is named by its type alone is, or every weight has a cast.
    """
    return view.trace.meta.has_autocast or _names_are_half(view) or _weights_are_cast(view)


def has_batch_of_one(view: Attribution) -> bool:
    """Whether the activations that are alive at the last failure, or at the peak, are of one sample: no
    batch is smaller. Only those of three dimensions and more count, whose names tell the shape.
    """
    failures = view.device.out_of_memory
    event = failures[-1].event if failures else view.device.requested.peak_event
    rows = view.device.allocations.alive_after(event)
    rows = rows[view.categories.category[rows] == Category.ACTIVATIONS]
    shapes = [
        shape
        for shape in shapes_of(view.names, rows.tolist()).values()
        if len(shape.sizes) >= _FEWEST_DIMENSIONS
    ]
    return len(shapes) >= _FEWEST_ACTIVATIONS and all(shape.sizes[0] == 1 for shape in shapes)


def is_half_type(name: str) -> bool:
    """Whether a tensor is of half precision whose name is its type and shape, such as
    ``bfloat16[8, 64]``: autocast would make it no smaller.
    """
    return name.partition("[")[0] in _HALF_TYPES


def _names_are_half(view: Attribution) -> bool:
    table = view.names.tensors
    bytes_of: Counter[str] = Counter()
    for name, size in zip(table.name, table.size_bytes.tolist(), strict=True):
        bytes_of[name.partition("[")[0]] += size
    half_bytes = sum(bytes_of[name] for name in _HALF_TYPES)
    return half_bytes >= _MUCH_IN_HALF * (half_bytes + bytes_of["float32"]) > 0


def _weights_are_cast(view: Attribution) -> bool:
    """Whether the forward pass makes something half as large as each of the weights: their casts."""
    sizes, category = view.device.allocations.requested_bytes, view.categories.category
    is_weight = category == Category.PARAMETERS
    weights = np.unique(sizes[is_weight & (sizes >= _LEAST_WEIGHT_BYTES)])
    made_in_forward = np.unique(sizes[~is_weight & (view.phases.phase == Phase.FORWARD)])
    return len(weights) >= _FEWEST_WEIGHTS and bool(np.isin(weights // 2, made_in_forward).all())


def uses_checkpoints(view: Attribution) -> bool:
    """Whether anything was made in ``torch.utils.checkpoint``, as far as stacks tell: what else
    there is at the failure, such as logits, is not of a repeated block.
    """
    stack = view.device.allocations.stack
    return bool(view.trace.stacks.within(CHECKPOINT_FRAME, stack).any())
