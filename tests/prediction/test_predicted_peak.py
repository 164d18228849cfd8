"""The lines of a prediction that say on which cards it fits."""

from __future__ import annotations

import pytest

from vramlens.prediction.card.cards import CARDS
from vramlens.prediction.predicted_peak import USUAL_CARDS, NotModelled, Prediction, fits_of
from vramlens.units import GIB


def prediction_of(
    low_bytes: int, high_bytes: int, cards: tuple[int, ...], *unknown: str
) -> Prediction:
    return Prediction(
        peaks={"allocated_bytes": low_bytes, "reserved_bytes": low_bytes},
        low_bytes=low_bytes,
        high_bytes=high_bytes,
        basis=(),
        not_modelled=tuple(NotModelled(reason, GIB) for reason in unknown),
        cards=fits_of(low_bytes, high_bytes, cards, CARDS["h200"]),
        gpu="NVIDIA H200",
        torch="2.13.0",
        steps=2,
        seconds=1.0,
        snapshot={},
        meta={},
    )


def card_lines(low_bytes: int, high_bytes: int, cards: tuple[int, ...]) -> list[str]:
    prediction = prediction_of(low_bytes, high_bytes, cards)
    return [line.strip() for line in str(prediction).splitlines() if "fit" in line]


def test_no_line_is_wider_than_a_terminal() -> None:
    reason = "a library's kernel of which nobody knows what it requests, nor how often it does so"
    text = str(prediction_of(GIB, 2 * GIB, USUAL_CARDS, reason))
    assert reason in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("low_gib", "high_gib", "lines"),
    [
        (1, 2, ["fits: 8.00 GiB and more"]),
        (
            11,
            13,
            ["fits: 16.00 GiB and more", "may fit: 12.00 GiB", "does not fit: 8.00 GiB"],
        ),
        (100, 120, ["fits: 141.00 GiB", "does not fit: 80.00 GiB and less"]),
        (150, 160, ["does not fit: 141.00 GiB and less"]),
    ],
)
def test_a_card_is_named_where_the_answer_changes(
    low_gib: int, high_gib: int, lines: list[str]
) -> None:
    assert card_lines(low_gib * GIB, high_gib * GIB, USUAL_CARDS) == lines


def test_cards_that_were_asked_for_come_in_any_order() -> None:
    assert card_lines(10 * GIB, 11 * GIB, (80 * GIB, 8 * GIB, 24 * GIB)) == [
        "fits: 24.00 GiB and more",
        "does not fit: 8.00 GiB",
    ]
