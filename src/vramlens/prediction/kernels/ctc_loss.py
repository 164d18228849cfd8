"""CTC loss as a GPU computes it: lengths may be on the host, and go there
(aten/src/ATen/native/LossCTC.cpp, ctc_loss).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch


def put_ctc_loss(runner: OperatorRunner) -> None:
    """Makes ``torch.ctc_loss`` take lengths on the host beside tensors of the GPU."""
    import torch  # the module itself: it is changed

    plain = torch.ctc_loss

    @functools.wraps(plain)
    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *options: Any
    ) -> Any:
        if isinstance(log_probs, runner.fake_tensor) and log_probs.fake_device.type == "cuda":
            samples = target_lengths.numel() if _is_tensor(target_lengths) else len(target_lengths)
            of_targets = targets.shape[1] if targets.dim() == 2 else targets.shape[0] // samples
            input_lengths = _listed(input_lengths, log_probs.shape[0])
            target_lengths = _listed(target_lengths, of_targets)
        return plain(log_probs, targets, input_lengths, target_lengths, *options)

    setattr(torch, "ctc_loss", ctc_loss)  # noqa: B010


def _is_tensor(lengths: Any) -> bool:
    return isinstance(lengths, torch.Tensor)


def _listed(lengths: Any, longest: int) -> list[int]:
    """Lengths as a list; where only the device has them, each as long as there is room for."""
    if not _is_tensor(lengths):
        return list(lengths)
    if type(lengths) is torch.Tensor:  # on the host, with values
        listed: list[int] = lengths.reshape(-1).tolist()
        return listed
    return [longest] * lengths.numel()
