"""CTC loss as a GPU computes it: lengths may be on the host, and go there
(aten/src/ATen/native/LossCTC.cpp, ctc_loss). Its kernels need them on the device again, and a large
one sums what blanks add by plain operators in its backward (ctc_loss_gpu_template and
ctc_loss_backward_gpu_template in cuda/LossCTC.cu; an acoustic model's recording has these requests
in this order).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.kernel_call import KernelCall, Rule, used_and_gone

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch

_LARGE = 450
_INDEX_BYTES = 8


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


def _offsets_and_lengths(call: KernelCall) -> list[int]:
    """Of each sample's place among the targets, and the lengths of both, on the device."""
    samples = call.argument(4 if _is_backward(call) else 3, "target_lengths")
    count = samples.numel() if _is_tensor(samples) else len(samples)
    return [count * _INDEX_BYTES] * 3


def _is_backward(call: KernelCall) -> bool:
    return call.name == "aten._ctc_loss_backward"


def _before_gradient(call: KernelCall) -> list[int]:
    """What is there before the gradient: of a loss whose infinities are zeros that is one without
    those infinite, chosen from what was computed by whether each sample's is.
    """
    log_probs, likelihoods, alphas = call.args[1], call.args[5], call.args[6]
    sizes = [*_offsets_and_lengths(call), alphas.nbytes]
    if call.argument(8, "zero_infinity", default=False):
        sizes += [log_probs.nbytes, *_sums_of_blanks(call)]
        sizes += [log_probs.element_size(), likelihoods.numel()]
    return sizes


def _beside_gradient(call: KernelCall) -> list[int]:
    return [] if call.argument(8, "zero_infinity", default=False) else _sums_of_blanks(call)


def _sums_of_blanks(call: KernelCall) -> list[int]:
    """Of a large loss, every other number of alphas and betas summed, and the logarithm of the sum
    of their exponentials (logsumexp_out_impl in ReduceOps.cpp): the largest, their amounts,
    whether those are infinite, the differences, the result.
    """
    log_probs, alphas = call.args[1], call.args[6]
    steps, samples, labels = log_probs.shape
    if 2 * steps + 24 * samples // 10 + 2 * labels // 10 <= _LARGE:
        return []
    numbers = int(steps * samples)
    result = numbers * alphas.element_size()
    sums = result * ((int(alphas.shape[-1]) + 1) // 2)
    largest = [result, *used_and_gone([result, numbers])]
    return [sums, *largest, sums, result, -sums, -result, -result, -sums]


FIRST: dict[str, Rule] = {
    "aten._ctc_loss": _offsets_and_lengths,
    "aten._ctc_loss_backward": _before_gradient,
}
"""What is asked for before the results."""
RULES: dict[str, Rule] = {"aten._ctc_loss_backward": _beside_gradient}
