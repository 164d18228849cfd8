"""Which results in 32 bits are written as they lie: of input, weight and result only the first two are
copied (benchmarks/prediction, an H200 with cuDNN 9.19).

- of a small image whose channels eight does not divide, with 33 to 64 of them (odd_channels.json.xz);
- of images with 64 channels made of 16 to 32, where an image has an even number of points and is no
  larger than 48 x 48; with 128 made of up to 64, and with 256 made of up to 32, where there are many
  points (layers_of_programs.json.xz; ``recurrent_ppo_impala``'s largest request, to the byte);
- of a volume that has 64 channels made of 32 and more, is small, or has more of a 1 x 1 x 1 kernel
  (batches_volumes.json.xz; ``p05_videomoco``'s peak to the byte; a 3-d U-Net's recording has 32 to 64
  and 64 to 32).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from vramlens.prediction.kernels.convolutions.weight_sizes import shared

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_VOLUME_DIMS = 5
_EIGHT, _FEW_CHANNELS, _MORE_CHANNELS, _LEAST_CHANNELS, _SMALL_KERNEL = 8, 32, 64, 16, 3
_SMALL_IMAGE, _MIDDLE_IMAGE, _MANY_POINTS = 400, 48 * 48, 40_000
"""Numbers of one channel of an image, and of all."""
_TILE_SIDE, _FEW_TILES, _LEAST_INPUTS, _MOST_SUMMED = 128, 24, 40, 1_570
"""Of a result's tiles: their channels and points, and how many are few for 132 processors; channels above which an
image is summed so, and numbers up to which are (padded_layers.json.xz, signal_layers.json.xz).
"""
_DOUBLED = 64, 128
_MOST_INPUTS = {128: 64, 256: 32}
"""By outputs."""


def is_written_as_it_lies(tensor: Any, weight: Any, output: Any) -> bool:
    """Whether the result of a convolution without groups is."""
    if tensor.dtype is not torch.float32:
        return False
    kernel = max(weight.shape[2:])
    if tensor.dim() == _VOLUME_DIMS:
        return _is_volume_written(tensor, output, is_point=kernel == 1)
    if kernel > 1 and (_is_in_few_tiles(tensor, weight, output) or _is_doubled(tensor, output)):
        return True
    return _is_odd_image_written(tensor, output) or (
        kernel == _SMALL_KERNEL and _is_wide_image_written(tensor, output)
    )


def _is_in_few_tiles(tensor: Any, weight: Any, output: Any) -> bool:
    """Whether a result is made in few tiles, of not too many numbers each."""
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    tiles = shared(int(output.numel()) // outputs, _TILE_SIDE) * shared(outputs, _TILE_SIDE)
    is_summed = inputs > _LEAST_INPUTS and int(weight.numel()) // outputs <= _MOST_SUMMED
    return is_summed and tiles <= _FEW_TILES


def _is_doubled(tensor: Any, output: Any) -> bool:
    """Whether 64 channels become 128, as in the second layer of a generator or an encoder."""
    channels = int(tensor.shape[1]), int(output.shape[1])
    return channels == _DOUBLED and int(tensor.numel()) // channels[0] >= _MANY_POINTS


def _is_odd_image_written(tensor: Any, output: Any) -> bool:
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    is_odd = inputs % _EIGHT > 0 or outputs % _EIGHT > 0
    is_small = math.prod(tensor.shape[2:]) <= _SMALL_IMAGE
    return is_odd and is_small and _FEW_CHANNELS < min(inputs, outputs) <= _MORE_CHANNELS


def _is_wide_image_written(tensor: Any, output: Any) -> bool:
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    points = math.prod(tensor.shape[2:])
    if outputs == _MORE_CHANNELS:
        is_middle = points % 2 == 0 and points <= _MIDDLE_IMAGE
        return is_middle and _LEAST_CHANNELS <= inputs <= _FEW_CHANNELS
    is_few = _LEAST_CHANNELS <= inputs <= _MOST_INPUTS.get(outputs, 0)
    return is_few and int(tensor.shape[0]) * points >= _MANY_POINTS


def _is_volume_written(tensor: Any, output: Any, *, is_point: bool) -> bool:
    inputs, outputs = int(tensor.shape[1]), int(output.shape[1])
    if is_point:
        return outputs > _MORE_CHANNELS
    if _FEW_CHANNELS < outputs <= _MORE_CHANNELS:
        return inputs >= _FEW_CHANNELS
    return inputs < _MORE_CHANNELS and int(tensor.numel()) // inputs < _MANY_POINTS
