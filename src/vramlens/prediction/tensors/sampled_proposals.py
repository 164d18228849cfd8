"""How many of a detector's sampled proposals are taken for objects: as many as its own setting allows.

torchvision/models/detection/roi_heads.py: of ``box_batch_size_per_image`` proposals, at most
``box_positive_fraction`` are objects, and only of these are masks and key points computed. How many
there are hangs on values: the range begins at none.
"""

from __future__ import annotations

from typing import Any

from vramlens.prediction.card.patched_tensors import after_import
from vramlens.prediction.tensors.even_choices import limit_share_above_zero


def put_sampled_proposals() -> None:
    """Has a detector of torchvision's tell the share of its samples that may be objects; for
    good.
    """
    after_import("torchvision.models.detection.roi_heads", _tell_share)


def _tell_share(module: Any) -> None:
    plain = module.RoIHeads.select_training_samples

    def select_training_samples(heads: Any, proposals: Any, targets: Any) -> Any:
        selected = plain(heads, proposals, targets)
        labels = selected[2]
        for labels_of_image in labels:
            limit_share_above_zero(labels_of_image, heads.fg_bg_sampler.positive_fraction)
        return selected

    module.RoIHeads.select_training_samples = select_training_samples
