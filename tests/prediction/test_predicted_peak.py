"""The lines of a prediction that say on which cards it fits."""

from __future__ import annotations

import pytest

from vramlens.prediction.predicted_peak import USUAL_CARDS, CardFit, NotModelled, Prediction
from vramlens.units import GIB

FITS = {"yes": True, "no": False, "maybe": None}


def prediction_of(cards: tuple[CardFit, ...], *unknown: str, retries: int = 0) -> Prediction:
    return Prediction(
        peaks={"allocated_bytes": GIB, "reserved_bytes": GIB},
        low_bytes=GIB,
        high_bytes=2 * GIB,
        basis=(),
        not_modelled=tuple(NotModelled(reason, GIB) for reason in unknown),
        cards=cards,
        gpu="NVIDIA H200",
        torch="2.13.0",
        steps=2,
        seconds=1.0,
        snapshot={},
        meta={},
        retries=retries,
    )


def card_lines(cards: tuple[CardFit, ...]) -> list[str]:
    return [line.strip() for line in str(prediction_of(cards)).splitlines() if "fit" in line]


def test_no_line_is_wider_than_a_terminal() -> None:
    reason = "a library's kernel of which nobody knows what it requests, nor how often it does so"
    cards = tuple(CardFit(size, True, retries=1000) for size in USUAL_CARDS)
    text = str(prediction_of(cards, reason, retries=1000))
    assert reason in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("fits", "lines"),
    [
        ("yes yes yes yes yes yes yes yes", ["fits: 8.00 GiB and more"]),
        (
            "no maybe yes yes yes yes yes yes",
            ["fits: 16.00 GiB and more", "may fit: 12.00 GiB", "does not fit: 8.00 GiB"],
        ),
        (
            "no no no no no no no yes",
            ["fits: 141.00 GiB", "does not fit: 80.00 GiB and less"],
        ),
        ("no no no no no no no no", ["does not fit: 141.00 GiB and less"]),
    ],
)
def test_a_card_is_named_where_the_answer_changes(fits: str, lines: list[str]) -> None:
    cards = zip(USUAL_CARDS, fits.split(), strict=True)
    assert card_lines(tuple(CardFit(size, FITS[word]) for size, word in cards)) == lines


def test_cards_that_were_asked_for_come_in_any_order() -> None:
    cards = (CardFit(80 * GIB, True), CardFit(8 * GIB, False), CardFit(24 * GIB, True))
    assert card_lines(cards) == ["fits: 24.00 GiB and more", "does not fit: 8.00 GiB"]


def test_what_a_full_card_costs_is_said_of_the_smallest_that_fits() -> None:
    cards = (CardFit(24 * GIB, True, retries=1), CardFit(16 * GIB, True, retries=7))
    text = " ".join(str(prediction_of(cards)).split())
    assert "fits: 16.00 GiB and more on 16.00 GiB with 7 retries: it completes" in text
    assert "with 1 retr" not in text
