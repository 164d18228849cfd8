"""The partial sums of a 1 x 1 weight's gradient where channels lie last.

In TF32 there is one for each of the card's processors, or two or four, divided by the weight's tiles of
128 x 128 channels; where the weight does not fill them, each sum of many points is of whole tiles, of
64 x 64 for up to 64 channels. In 16 bits there are about as many as the results have 1,300 numbers of a
channel, with an image's channels filled up to 32, and of large weights fewer (network_layers.json.xz and
weight_gradients.json.xz in benchmarks/prediction).
"""

from __future__ import annotations

from typing import Any

from vramlens.prediction.kernels.convolutions.weight_sizes import (
    TILE_BYTES,
    TILE_SIDE,
    WeightSizes,
    filled_up,
    shared,
)

_PROCESSORS, _TILE, _BYTES_OF_TILE = 132, 128, 4 * TILE_BYTES
"""Of an H200 and an H100, and what one of them works on at a time."""
_LEAST_SUMMED, _LEAST_OF_PART, _MULTIPLE_OF_PART = 1_000, 64, 4
"""Points of all images: for partial sums at all; of one sum."""
_FEW_TILES, _MANY_TILES, _LEAST_OF_MANY = 3, 16, 800_000
"""Tiles up to which there is one sum for each processor, from which on there are four, not two, and how
many points of all tiles that takes.
"""
_TWO_TILES, _SUMS_OF_TILE = 2, 66
"""Of a weight of two tiles of 128 x 128, and the sums of one of one tile."""
_SMALL_POINTS, _SMALL_SUMS = 5_000, 36
_LEAST_OF_SMALL_TILES, _POINTS_OF_SMALL_TILE, _SMALL_TOGETHER = 12_000, 264, 4
"""Points up to which a weight of up to 64 channels has at most so many sums, and from which on these are
tiles: one more for each so many points, some at a time.
"""
_LEAST_OF_WHOLE_TILES, _SEVERAL_TILES, _LEAST_OF_SEVERAL_TILES = 49_000, 4, 20_000
"""Points from which on sums are whole tiles, and the same of so many tiles."""
_SHORT_OF_TILE, _LEAST_OF_SHORT, _SUMS_OF_SHORT = range(65, 128), 12_000, 99
_SQUARE, _EVEN_CHANNELS, _EVEN_TILES, _SUMS_OF_EVEN = (112, 224, 320), (160, 192), 4, 44
"""Channels of image and result of weights whose sums are never whole tiles, and channels of one side; tiles
of weights that have them on both, and their sums.
"""
_POINTS_OF_HALF, _LEAST_OF_HALF, _FILLED_OF_HALF = 1_293, 3_000, 32
_MOST_OF_HALF: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 66),),
    2: ((0, 33), (200_000, 66)),
    3: ((0, 44),),
    4: ((0, 25), (60_000, 28), (140_000, 44)),
    6: ((0, 22), (140_000, 33)),
    8: ((0, 16), (60_000, 22), (140_000, 33)),
    9: ((0, 10), (35_000, 14), (60_000, 22), (130_000, 26)),
    16: ((0, 8), (30_000, 11), (60_000, 16)),
}
_FULL_OF_HALF = {4: ((0, 21), (37_000, 15), (140_000, 33))}
"""Points from which on there are at most so many partial sums in 16 bits, by the weight's tiles of
128 x 128; of weights that fill them, where those differ.
"""
_SEVERAL_OF_HALF, _LEAST_OF_UNEVEN_HALF = 6, 9_000
"""Tiles from which on a weight with more channels on one side has partial sums of so many points."""
_MOST_OF_NARROW_HALF, _LONGEST_NARROW, _FEWEST_OF_HALF = 132, 80, 4


def bytes_of_sums_with_channels_last(tensor: Any, weight: Any, output: Any) -> int:
    """Of such a gradient's partial sums in TF32."""
    sizes = WeightSizes.of(tensor, weight, output, 1)
    points = sizes.results
    if points < _LEAST_SUMMED:
        return 0
    if max(sizes.input_tiles, sizes.output_tiles) == 1:
        return _bytes_of_small(sizes)
    tiles = _tiles(sizes)
    least_points = _LEAST_OF_SEVERAL_TILES if tiles >= _SEVERAL_TILES else _LEAST_OF_WHOLE_TILES
    if points >= least_points and not _is_full(sizes) and not _is_even(sizes):
        return _BYTES_OF_TILE * (_most(sizes, tiles) * tiles)
    return sizes.bytes_of_sum * _sums(points, _most(sizes, tiles))


def bytes_of_sums_of_halves(tensor: Any, weight: Any, output: Any) -> int:
    """Of such a gradient's partial sums in 16 bits."""
    sizes = WeightSizes.of(tensor, weight, output, 1)
    is_uneven = sizes.inputs != sizes.outputs and _tiles(sizes) >= _SEVERAL_OF_HALF
    if sizes.results < (_LEAST_OF_UNEVEN_HALF if is_uneven else _LEAST_OF_HALF):
        return 0
    sums = min(sizes.results // _POINTS_OF_HALF, _most_of_half(sizes))
    inputs = filled_up(sizes.inputs, _FILLED_OF_HALF)
    return 4 * inputs * sizes.outputs * sums if sums > 1 else 0


def _bytes_of_small(sizes: WeightSizes) -> int:
    points = sizes.results
    if points >= _LEAST_OF_SMALL_TILES:
        groups = min(
            points // (_POINTS_OF_SMALL_TILE * _SMALL_TOGETHER),
            2 * _PROCESSORS // _SMALL_TOGETHER,
        )
        return TILE_BYTES * _SMALL_TOGETHER * groups
    most_sums = _PROCESSORS if points >= _SMALL_POINTS else _SMALL_SUMS
    return sizes.bytes_of_sum * _parts(points, most_sums)


def _most_of_half(sizes: WeightSizes) -> int:
    short, long = sorted((sizes.inputs, sizes.outputs))
    if (short <= TILE_SIDE and long <= _TILE) or long <= _LONGEST_NARROW:
        return _MOST_OF_NARROW_HALF
    tiles = _tiles(sizes)
    full = _FULL_OF_HALF.get(tiles) if _is_full(sizes) else None
    steps = full or _MOST_OF_HALF.get(tiles, ((0, _FEWEST_OF_HALF),))
    return [sums for points, sums in steps if sizes.results >= points][-1]


def _tiles(sizes: WeightSizes) -> int:
    return shared(sizes.inputs, _TILE) * shared(sizes.outputs, _TILE)


def _is_full(sizes: WeightSizes) -> bool:
    return sizes.inputs % _TILE == 0 and sizes.outputs % _TILE == 0


def _is_even(sizes: WeightSizes) -> bool:
    """Whether a weight has channels that smaller tiles fit."""
    if sizes.inputs < _TILE < sizes.outputs and _tiles(sizes) == _FEW_TILES:
        return True
    channels = {sizes.inputs, sizes.outputs}
    return not channels.isdisjoint(_EVEN_CHANNELS) or (
        len(channels) == 1 and not channels.isdisjoint(_SQUARE)
    )


def _most(sizes: WeightSizes, tiles: int) -> int:
    """How many partial sums there are at most."""
    points = sizes.results
    if tiles == 1:
        return _most_of_tile(sizes)
    if tiles == _TWO_TILES and sizes.least_channels <= TILE_SIDE:
        return _PROCESSORS
    if tiles == _EVEN_TILES and sizes.inputs == sizes.outputs and sizes.inputs in _EVEN_CHANNELS:
        return _SUMS_OF_EVEN
    if tiles <= _FEW_TILES:
        return _PROCESSORS // tiles
    is_many = tiles >= _MANY_TILES and points * tiles >= _LEAST_OF_MANY and _is_full(sizes)
    return max(1, (4 if is_many else 2) * _PROCESSORS // tiles)


def _most_of_tile(sizes: WeightSizes) -> int:
    """The same of one tile."""
    short, long = sorted((sizes.inputs, sizes.outputs))
    if short <= TILE_SIDE and (long == _TILE or sizes.results < _LEAST_OF_WHOLE_TILES):
        return _PROCESSORS
    is_short = long in _SHORT_OF_TILE and sizes.results >= _LEAST_OF_SHORT
    is_split = is_short and (_is_even(sizes) or sizes.results < _LEAST_OF_WHOLE_TILES)
    return _SUMS_OF_SHORT if is_split else _SUMS_OF_TILE


def _sums(points: int, most_sums: int) -> int:
    """How many partial sums there are of so many points."""
    return _parts(
        points, max(1, most_sums // 2) if points < _LEAST_OF_PART * most_sums else most_sums
    )


def _parts(points: int, most_sums: int) -> int:
    parts = max(1, min(most_sums, points // _LEAST_OF_PART))
    return shared(points, filled_up(shared(points, parts), _MULTIPLE_OF_PART))
