"""The lines of a prediction that say on which cards it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vramlens.cards.known_cards import CARDS
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


def test_a_named_card_is_named_with_its_size() -> None:
    total = CARDS["4090"].total_bytes
    assert card_lines((CardFit(total, None),)) == ["may fit: 4090 (23.64 GiB)"]


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ([24], "0.4 to 0.9 GiB of it also go to the CUDA context and libraries"),
        ([8, 24], "0.4 to 0.9 GiB of each card also go to the CUDA context and libraries"),
    ],
)
def test_what_a_card_gives_the_cuda_context_is_said_once(sizes: list[int], line: str) -> None:
    cards = tuple(CardFit(size * GIB, None) for size in sizes)
    outside = CARDS["h200"].outside_bytes
    text = str(replace(prediction_of(cards), outside_bytes=outside))
    assert text.count("CUDA context") == 1
    assert f"    {line}" in text.splitlines()


def test_cards_that_were_asked_for_come_in_any_order() -> None:
    cards = (CardFit(80 * GIB, True), CardFit(8 * GIB, False), CardFit(24 * GIB, True))
    assert card_lines(cards) == ["fits: 24.00 GiB, 80.00 GiB", "does not fit: 8.00 GiB"]


def test_each_card_that_was_asked_for_is_named() -> None:
    l4 = CARDS["l4"].total_bytes
    cards = (*(CardFit(size * GIB, size > 12) for size in (8, 12, 24)), CardFit(l4, True))
    assert card_lines(cards) == [
        "fits: l4 (21.96 GiB), 24.00 GiB",
        "does not fit: 8.00 GiB, 12.00 GiB",
    ]


@pytest.mark.parametrize(
    ("fits", "retries", "line"),
    [
        (True, 0, "2.00 GiB fits at 2.00 GiB, too: on a full card PyTorch frees cached blocks"),
        (True, 3, ""),  # the line on the retries says it
        (None, 0, ""),
        (False, 0, ""),
    ],
)
def test_a_card_below_the_upper_end_of_the_range_fits_as_the_cache_comes_free(
    fits: bool | None, retries: int, line: str
) -> None:
    cards = (CardFit(2 * GIB, fits, retries=retries), CardFit(8 * GIB, True))
    text = str(replace(prediction_of(cards), outside_bytes=CARDS["h200"].outside_bytes))
    lines = [line.strip() for line in text.splitlines() if "on a full card" in line]
    assert lines == ([line] if line else [])


@pytest.mark.parametrize(
    ("retries", "told"),
    [
        (
            {24: 1, 16: 7, 8: 90, 80: 0},
            "with 7 retries on 16.00 GiB, 1 on 24.00 GiB: it completes, but each retry frees"
            " PyTorch's cache and costs time",
        ),
        (
            {24: 1, 80: 0},
            "with 1 retry on 24.00 GiB: it completes, but the retry frees PyTorch's cache and"
            " costs time",
        ),
    ],
)
def test_what_a_full_card_costs_is_said_of_each_that_fits(
    retries: dict[int, int], told: str
) -> None:
    cards = tuple(CardFit(size * GIB, size > 8, retries=count) for size, count in retries.items())
    assert told in " ".join(str(prediction_of(cards)).split())


@pytest.mark.parametrize(
    ("retries", "told"),
    [(1, "with 1 retry: the retry frees"), (5, "with 5 retries: each retry frees")],
)
def test_what_the_full_card_itself_costs(retries: int, told: str) -> None:
    assert told in " ".join(str(prediction_of((), retries=retries)).split())


@pytest.mark.parametrize(
    ("steps", "told"), [(0, ""), (1, "; 1 optimizer step"), (3, "; 3 optimizer steps")]
)
def test_optimizer_steps_are_counted_where_there_are_some(steps: int, told: str) -> None:
    lines = str(replace(prediction_of(()), steps=steps)).splitlines()
    assert lines[1] == f"  peak allocated: 1.00 GiB{told}"


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "such a number decides /a/train.py:1: a run may"),
        (2, "such numbers decide /a/train.py:1, /a/train.py:2: a run may"),
        (5, "such numbers decide /a/train.py:1, /a/train.py:2, /a/train.py:3, …: a run may"),
    ],
)
def test_decisions_by_made_up_numbers_are_named(count: int, told: str) -> None:
    decisions = tuple(("/a/train.py", line) for line in range(1, count + 1))
    text = str(replace(prediction_of(()), decisions=decisions))
    assert told in " ".join(text.split())
    assert "decide" not in str(prediction_of(()))
    assert max(map(len, text.splitlines())) <= 80


def test_what_a_run_needs_at_least_is_told() -> None:
    decided = replace(prediction_of(()), decisions=(("/a/train.py", 1),), sure_bytes=3 << 28)
    text = " ".join(str(decided).split())
    assert (
        "decides /a/train.py:1: if a run does the least that it can there, it needs 768.00 MiB"
        in text
    )
    assert "may need more than predicted" in text
    assert decided.to_json()["sure_bytes"] == 3 << 28
