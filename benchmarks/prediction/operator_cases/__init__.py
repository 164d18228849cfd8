"""Cases of single operators: each is run on a GPU, and predicted without one, by the same code."""

from __future__ import annotations

from operator_cases.case import Case
from operator_cases.samples import sampled_cases


def all_cases() -> list[Case]:
    """Every case, those written by hand first; their order is the same everywhere."""
    from operator_cases.by_hand import cases_by_hand

    return [*cases_by_hand(), *sampled_cases()]


__all__ = ["Case", "all_cases"]
