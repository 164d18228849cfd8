"""CTC loss as a GPU computes it: lengths may be on the host, and go there
(aten/src/ATen/native/LossCTC.cpp, ctc_loss); a large one sums what blanks add by plain operators in
its backward (ctc_loss_backward_gpu_template in cuda/LossCTC.cu).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.kernel_call import KernelCall, Rule

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch

_LARGE = 450


def put_ctc_loss(runner: OperatorRunner) -> None:
    """Makes ``torch.ctc_loss`` take lengths on the host beside tensors of the GPU."""
    import torch  # the module itself: it is changed

    plain = torch.ctc_loss

    @functools.wraps(plain)
    def ctc_loss(
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        *more: Any,
        **named: Any,
    ) -> Any:
        if runner.is_on_card(log_probs):
            samples = target_lengths.numel() if _is_tensor(target_lengths) else len(target_lengths)
            of_targets = targets.shape[1] if targets.dim() == 2 else targets.shape[0] // samples
            input_lengths = _listed(input_lengths, log_probs.shape[0])
            target_lengths = _listed(target_lengths, of_targets)
        return plain(log_probs, targets, input_lengths, target_lengths, *more, **named)

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


def _backward(call: KernelCall) -> list[int]:
    """The betas, and of a large loss every other number of alphas and betas, summed and scaled
    (recording of ctc: 0.2% more).
    """
    log_probs, alphas = call.args[1], call.args[6]
    steps, samples, labels = log_probs.shape
    if 2 * steps + 24 * samples // 10 + 2 * labels // 10 <= _LARGE:
        return [alphas.nbytes]
    blanks = (int(alphas.shape[-1]) + 1) // 2
    return [alphas.nbytes, *[samples * steps * blanks * alphas.element_size()] * 2]


RULES: dict[str, Rule] = {"aten._ctc_loss_backward": _backward}
