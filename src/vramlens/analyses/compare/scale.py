"""Scale: whether the runs have another batch, input or model, as the sizes of their requests tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vramlens.analyses.compare.compared_run import Run
from vramlens.analyses.compare.diff_answer import SettingDifference
from vramlens.analyses.compare.request_sizes import (
    RequestSizes,
    SizeChange,
    request_sizes,
    size_change,
)
from vramlens.analyses.finding import Place
from vramlens.units import format_size

_OTHER = 0.5
"""Where less of the sizes is the same, most are others."""
_FEWEST_LINES = 2
_OF_DTYPES = (0.25, 0.5, 2.0, 4.0)
"""Factors between the sizes of numbers of 8, 16, 32 and 64 bits."""


def scale_differences(
    before: Run, after: Run, places: Mapping[Place, Place]
) -> Iterator[SettingDifference]:
    """Yields what is larger or smaller in one of the runs because of its batch, input, model or dtype.

    Args:
        places: by line in the run before, its place in the run after.
    """
    old, new = request_sizes(before), request_sizes(after)
    # A function of another name may well build another model.
    builders = {line: now for line, now in places.items() if line.function == now.function}
    weights = size_change(old.weights, new.weights, builders, is_squared=False)
    if _are_others(weights):
        yield _of_weights(weights)
        return
    results = size_change(old.results, new.results, places)
    if results.factor is not None and _lines_of_both(old, new, places) >= _FEWEST_LINES:
        yield _of_results(results, size_change(old.inputs, new.inputs, places))
    elif _are_others(results):
        yield from _of_inputs(size_change(old.inputs, new.inputs, places))


def _are_others(change: SizeChange) -> bool:
    """Whether most of the sizes are others; False without any."""
    return change.same_share is not None and change.same_share < _OTHER


def _lines_of_both(before: RequestSizes, after: RequestSizes, places: Mapping[Place, Place]) -> int:
    return sum(old in before.results and new in after.results for old, new in places.items())


def _of_weights(weights: SizeChange) -> SettingDifference:
    """Other parameters: of another dtype, where all have the factor of one; else of another model."""
    if weights.factor is not None and round(weights.factor, 2) in _OF_DTYPES:
        words = f"nearly all parameters are {weights.factor:.3g} times as large: likely a different dtype"
        return SettingDifference("scale", None, f"{weights.factor:.4g}", words)
    largest = _both(weights.largest)
    words = (
        f"nearly all parameters have other sizes (the largest {largest}): likely a different model "
        "size"
    )
    return SettingDifference("scale", None, None, words, is_of_work=True)


def _of_results(results: SizeChange, inputs: SizeChange) -> SettingDifference:
    """Activations that are all so many times as large; inputs of the same size make them no other work."""
    factor = results.factor or 1.0
    is_known = inputs.same_share is not None
    is_other_input = _are_others(inputs)
    may_be_dtype = round(factor, 2) in _OF_DTYPES and not is_other_input
    or_square = f" or {factor * factor:.3g}x" if results.has_squares else ""
    words = f"nearly all activations are {factor:.3g}x{or_square} as large"
    if is_known and not is_other_input:
        words += ", but the inputs are not: likely a part of the batch at a time"
    else:
        words += ": likely a different batch or input size"
    if may_be_dtype:
        words += ", or a different dtype"
    is_of_work = is_other_input or not (is_known or may_be_dtype)
    return SettingDifference("scale", None, f"{factor:.4g}", words, is_of_work=is_of_work)


def _of_inputs(inputs: SizeChange) -> Iterator[SettingDifference]:
    """Yields that the inputs are others, where activations have no factor in common."""
    if _are_others(inputs) and not inputs.varies:
        words = (
            f"the inputs have other sizes (the largest {_both(inputs.largest)}), and so do most "
            "activations"
        )
        yield SettingDifference("scale", None, None, words, is_of_work=True)


def _both(sizes: tuple[int, int]) -> str:
    old, new = map(format_size, sizes)
    return f"{old} before, {new} after"
