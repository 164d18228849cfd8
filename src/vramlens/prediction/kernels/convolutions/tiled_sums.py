"""The partial sums of a weight's gradient in TF32, of kernels larger than 1 x 1.

A gradient is made in tiles: those of 128 x 128 channels at each place of the kernel, or half and a
quarter of that where there are fewer channels. Where the card has processors left, each tile is
made in parts: as many as its processors are to the tiles, and each part is one partial sum in
float32 of a whole tile. Of tiles that the processors take in several rounds, those of the last
round are. Of 5,886 such gradients with 64 channels and more on both sides, which an H200 made of
14,000 results of a channel and more in both layouts, 5,160 are right to 2 KiB
(weight_gradients.json.xz in benchmarks/prediction); which kernel runs is cuDNN's choice, and others
have other sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.prediction.kernels.convolutions.weight_sizes import (
    TILE_BYTES,
    TILE_SIDE,
    WeightSizes,
    shared,
)

PROCESSORS = 132
"""Of an H200 and an H100."""
_HALF_TILE, _TILE, _LONG_TILE = 2 * TILE_BYTES, 4 * TILE_BYTES, 8 * TILE_BYTES
"""Bytes of tiles of 64 x 128, 128 x 128 and 256 x 128 numbers."""
_CHANNELS_OF_TILE, _IN_TILE, _IN_LONG_TILE = 2 * TILE_SIDE, 2, 4
"""Channels of a tile, and how many tiles of 64 channels are in one, and in a long one."""
_PAIRS, _PLACES_OF_PAIR, _FEW_PAIRED = PROCESSORS // 2, 2, 4
"""Of processors, places of the kernel that one makes, and tiles of outputs that one pair makes for up to 64 inputs."""
_FEW_TILES, _MANY_TILES = 86, 270
"""Tiles up to which more processors work on halves of them, and above which only some gradients have
partial sums: those with as many inputs as outputs, of many results.
"""
_RESULTS_OF_MANY_TILES = 30_000
_UNEVEN = 7
"""Tiles of 64 channels, 448, that larger ones do not fit: none is made in parts."""
_THREE = 3
"""Tiles of 64 channels, 192, that are laid one after the other over the places of the kernel."""
_SMALL_KERNEL = 9
_IN_A_ROW_OF_TILES = (576, 192)
"""Inputs and outputs of a concatenation's gradient that is laid so in smaller tiles."""
_MORE_INPUTS, _MANY_INPUTS = 5, 8
"""Tiles of 64 inputs from which on a gradient with fewer outputs is made otherwise, but of whole tiles
of these, and from which on in any case.
"""
_LARGER_KERNEL, _PARTED_IN_ANY_CASE = 5, (320, 80)
_INPUTS_OF_EIGHTHS, _EIGHT_SUMS, _RESULTS_OF_EIGHTHS = 160, 8, 10_000
"""Inputs whose gradient with as many outputs or fewer is eight sums, from so many results on."""
_INPUTS_WIDENED, _WIDENED = 6, 12
"""Tiles of 64 inputs, and of outputs from which on such a gradient is made of channels that lie first."""
_RESULTS_OF_PART = 190
"""Of one channel, that each part of a tile in the last round goes over at least."""
_LEAST_RESULTS, _MORE_RESULTS, _MANY_RESULTS = 1_500, 6_250, 14_000
"""Of one channel: below the first there is one part, below the others a fourth and half of the parts."""
_FEW_PARTS, _RESULTS_OF_POINT = 4, 1_130
_RESULTS_OF_FEW_PARTS = {True: 3_000, False: 9_000}
"""Results from which on tiles have so few parts, by whether all are full."""


@dataclass(frozen=True, slots=True)
class _Parted:
    """Tiles that are made in parts."""

    tiles: int
    tile_bytes: int
    parts: int
    is_rest: bool = False

    @classmethod
    def over(cls, tiles: int, tile_bytes: int, processors: int = PROCESSORS) -> _Parted:
        """Those that so many processors make in parts."""
        tiles_left = tiles % processors
        if tiles <= processors:
            return cls(tiles, tile_bytes, processors // tiles)
        return cls(
            tiles_left, tile_bytes, processors // tiles_left if tiles_left else 1, is_rest=True
        )


_WHOLE = _Parted(0, _TILE, 1)


def bytes_of_tiled_sums(sizes: WeightSizes) -> int:
    """Of a gradient's partial sums."""
    if _is_of_eighths(sizes):
        return _EIGHT_SUMS * sizes.bytes_of_sum if sizes.results >= _RESULTS_OF_EIGHTHS else 0
    if takes_channels_first(sizes):
        return 0
    parted = _parted(sizes)
    parts = _parts(sizes, parted)
    return parted.tiles * parted.tile_bytes * parts if parts > 1 else 0


def takes_channels_first(sizes: WeightSizes) -> bool:
    """Whether the kernel takes images and results whose channels lie first, and is given copies of
    others.
    """
    is_odd = sizes.inputs % TILE_SIDE > 0 or sizes.outputs % TILE_SIDE > 0
    if sizes.places > _SMALL_KERNEL:
        return is_odd and sizes.kernel == _LARGER_KERNEL and sizes.input_tiles > 1
    if sizes.places < _SMALL_KERNEL:
        return False
    if _is_of_eighths(sizes) or (
        sizes.input_tiles == _INPUTS_WIDENED and sizes.output_tiles >= _WIDENED
    ):
        return True
    is_narrower = sizes.outputs < sizes.inputs and sizes.input_tiles >= _MORE_INPUTS
    return is_odd and is_narrower and (sizes.inputs, sizes.outputs) != _PARTED_IN_ANY_CASE


def _is_of_eighths(sizes: WeightSizes) -> bool:
    is_small = sizes.places == _SMALL_KERNEL
    return is_small and sizes.inputs == _INPUTS_OF_EIGHTHS and sizes.outputs <= sizes.inputs


def _parted(sizes: WeightSizes) -> _Parted:
    if min(sizes.input_tiles, sizes.output_tiles) == 1:
        parted = _parted_of_few(sizes)
        if parted is not None:
            return parted
    tiles = _tiles(sizes)
    if (sizes.inputs, sizes.outputs) == _IN_A_ROW_OF_TILES and sizes.places == _SMALL_KERNEL:
        tiles_in_row = shared(sizes.places * sizes.input_tiles, _IN_TILE)
        outputs = shared(sizes.output_tiles, _IN_TILE)
        return _Parted.over(tiles_in_row * outputs, _TILE, _PAIRS)
    if _is_laid_in_a_row(sizes):
        tiles_in_row = shared(sizes.places * _THREE, _IN_TILE)
        pairs_of_outputs = shared(sizes.output_tiles, _IN_LONG_TILE)
        return _Parted.over(tiles_in_row * pairs_of_outputs, _LONG_TILE, _PAIRS)
    if tiles >= _PAIRS and _UNEVEN in (sizes.input_tiles, sizes.output_tiles):
        return _WHOLE
    if tiles < _PAIRS:
        return _WHOLE if _has_too_many_inputs(sizes) else _Parted.over(tiles, _TILE)
    if tiles < _FEW_TILES:
        halves = sizes.places * sizes.input_tiles * shared(sizes.output_tiles, _IN_TILE)
        return _Parted.over(halves, _HALF_TILE)
    return _parted_of_many(sizes, tiles)


def _parted_of_few(sizes: WeightSizes) -> _Parted | None:
    """Where one side has up to 64 channels; None where it has no tiles of its own."""
    inputs, outputs = sizes.input_tiles, sizes.output_tiles
    if max(inputs, outputs) == 1:
        return _Parted.over(sizes.places, TILE_BYTES)
    pairs = shared(sizes.places, _PLACES_OF_PAIR)
    if max(inputs, outputs) == _IN_TILE:
        return _Parted.over(pairs, _TILE, _PAIRS)
    if inputs == 1:
        return _Parted.over(pairs, _LONG_TILE, _PAIRS) if outputs <= _FEW_PAIRED else None
    return _Parted.over(sizes.places * shared(inputs, _IN_TILE), _HALF_TILE)


def _parted_of_many(sizes: WeightSizes, tiles: int) -> _Parted:
    if tiles < PROCESSORS:
        return _WHOLE
    is_square = sizes.inputs == sizes.outputs
    if tiles > _MANY_TILES:
        is_parted = is_square and sizes.results >= _RESULTS_OF_MANY_TILES
        is_parted = is_parted or (sizes.outputs > sizes.inputs and sizes.input_tiles % 2 > 0)
        if not is_parted:
            return _WHOLE
    pairs = shared(sizes.places * shared(sizes.input_tiles, _IN_TILE), _PLACES_OF_PAIR)
    return _Parted.over(pairs * shared(sizes.output_tiles, _IN_TILE), _LONG_TILE, _PAIRS)


def _tiles(sizes: WeightSizes) -> int:
    """Tiles of 128 x 128 channels at all places of the kernel."""
    return sizes.places * shared(sizes.input_tiles, _IN_TILE) * shared(sizes.output_tiles, _IN_TILE)


def _is_laid_in_a_row(sizes: WeightSizes) -> bool:
    is_small = sizes.places == _SMALL_KERNEL
    return is_small and sizes.input_tiles == _THREE and sizes.output_tiles % _THREE == 0


def _has_too_many_inputs(sizes: WeightSizes) -> bool:
    """Whether a gradient has so many inputs for its outputs that another kernel makes it."""
    if sizes.inputs <= sizes.outputs or sizes.input_tiles < _MORE_INPUTS:
        return False
    is_full = sizes.inputs % _CHANNELS_OF_TILE == 0 and sizes.outputs % TILE_SIDE == 0
    is_many = sizes.input_tiles >= _MANY_INPUTS
    return is_many or not (is_full or (sizes.inputs, sizes.outputs) == _PARTED_IN_ANY_CASE)


def _parts(sizes: WeightSizes, parted: _Parted) -> int:
    """How many parts a tile is made in: fewer of few results."""
    parts, results = parted.parts, sizes.results
    if sizes.places == 1:
        parts = min(parts, results // _RESULTS_OF_POINT)
    if parted.is_rest or parts > PROCESSORS // _SMALL_KERNEL:
        return min(parts, results // _RESULTS_OF_PART)
    if parts <= _FEW_PARTS:
        channels = sizes.inputs, sizes.outputs
        is_full = all(count % _CHANNELS_OF_TILE == 0 for count in channels)
        least_results = _RESULTS_OF_FEW_PARTS[is_full]
        return (
            parts if results >= least_results else parts // 2 if 2 * results >= least_results else 1
        )
    if results < _LEAST_RESULTS:
        return 1
    if results < _MORE_RESULTS:
        return shared(parts, 4)
    return parts if results >= _MANY_RESULTS else shared(parts, 2)
