"""Copies that cuDNN makes of a convolution's tensors, with their channels filled up.

To a multiple of eight with 16 bits, of four with 32 (odd_channels.json.xz in benchmarks/prediction:
of 3,534 in both layouts, nine of ten results and input's gradients with 16 bits are right so). With
channels last only what has odd channels is copied, and the weight with it.
"""

from __future__ import annotations

from typing import Any

from vramlens.prediction.kernels.convolutions.weight_sizes import filled_up
from vramlens.prediction.kernels.image_layout import bytes_of, is_half

HEADER_BYTES, KERNEL_BYTES = 16, 400
"""Of copies, beside them; and of a kernel that copies nothing."""
_MULTIPLE_OF_HALF, _MULTIPLE = 8, 4
_POINTS_OF_SUM = 640
"""Results of one channel that each partial sum in groups of few channels goes over."""


def multiple_of(tensor: Any) -> int:
    """The number of channels whose multiples are taken as they are."""
    return _MULTIPLE_OF_HALF if is_half(tensor) else _MULTIPLE


def bytes_of_copies(tensor: Any, weight: Any, output: Any, *, fills_inputs: bool = True) -> int:
    """Of copies of all three tensors.

    Args:
        fills_inputs: whether the input's channels are filled up.
    """
    input_share = _share(tensor) if fills_inputs else (1, 1)
    output_share = _share(output)
    copies = _scaled(bytes_of(tensor), input_share) + _scaled(bytes_of(output), output_share)
    return copies + _scaled(bytes_of(weight), input_share, output_share) + HEADER_BYTES


def bytes_of_filled_sides(tensor: Any, output: Any) -> int:
    """Of copies of input and output."""
    return sum(_scaled(bytes_of(side), _share(side)) for side in (tensor, output))


def bytes_of_even_copies(tensor: Any, weight: Any, output: Any) -> int:
    """Of copies of all three tensors of a convolution in groups: each group has as many channels in as out
    (few_units_groups.json.xz in benchmarks/prediction).
    """
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    channels = max(inputs, outputs)
    input_share, output_share = (channels, inputs), (channels, outputs)
    copies = _scaled(bytes_of(tensor), input_share) + _scaled(bytes_of(output), output_share)
    return copies + _scaled(bytes_of(weight), input_share, output_share) + HEADER_BYTES


def bytes_of_few_in_groups(tensor: Any, weight: Any, output: Any) -> int:
    """Of a weight's gradient of few channels in groups: such copies, and partial sums of the copied weight
    (the largest requests of ``p13_maml``, of 3 channels in 8 groups with 25 and 75 images, to 1%).
    """
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    share = max(inputs, outputs), inputs
    sums = int(output.numel()) // outputs // _POINTS_OF_SUM
    return bytes_of_even_copies(tensor, weight, output) + sums * _scaled(bytes_of(weight), share)


def bytes_of_uneven_copies(tensor: Any, weight: Any, output: Any) -> int:
    """Of copies for such a convolution where channels lie last: of the side with fewer channels, and of the
    weight; 0 where both sides have as many.
    """
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    if inputs == outputs:
        return 0
    channels = max(inputs, outputs)
    fewer = output if outputs < inputs else tensor
    copies = _scaled(bytes_of(fewer), (channels, min(inputs, outputs)))
    return (
        copies + _scaled(bytes_of(weight), (channels, inputs), (channels, outputs)) + HEADER_BYTES
    )


def bytes_of_odd_copies(tensor: Any, weight: Any, output: Any) -> int:
    """Of copies of what has odd channels where channels lie last; 0 where nothing has."""
    shares = [_share(tensor), _share(output)]
    if all(filled == own for filled, own in shares):
        return 0
    pairs = zip((tensor, output), shares, strict=True)
    copies = [_scaled(bytes_of(side), share) for side, share in pairs if share[0] != share[1]]
    return sum(copies) + _scaled(bytes_of(weight), *shares) + HEADER_BYTES


def _share(tensor: Any) -> tuple[int, int]:
    """The channels of a copy, and those of the tensor."""
    channels, multiple = int(tensor.shape[1]), multiple_of(tensor)
    return filled_up(channels, multiple), max(1, channels)


def _scaled(size: int, *shares: tuple[int, int]) -> int:
    for filled, own in shares:
        size = size * filled // own
    return size
