"""Which cards are large enough for a recorded run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.replay.tuning import USUAL_OUTSIDE_BYTES
from vramlens.report.replay.story import conf_name
from vramlens.report.wording import listed
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.replay import CardUnderSetting, Tuned, Tuning


_TIGHT = (
    "less than 1 GiB is left for memory outside PyTorch's allocator (often 0.5 to 1 GiB), which this"
    " recording does not contain"
)
_RETRY = (
    "retry: the card is too small for this peak, so PyTorch frees its cache and tries"
    " again. The run completes, but each retry costs time."
)


def cards_headline(tuning: Tuning) -> str:
    """The smallest card, with the settings that the run had and with those that need less."""
    recorded = tuning.as_recorded
    best = min((recorded, *tuning.tried), key=lambda tuned: tuned.card_rank)
    card = best.smallest
    if card is None:
        return _no_card_is_certain(tuning)
    who = "the recorded settings" if best is recorded else conf_name(best.row)
    on_card = f"{a_card(card.size_bytes)} with {who}{_retries_words(card)}"
    if not card.fits:
        return (
            f"May fit {on_card}: it leaves less than {card_words(USUAL_OUTSIDE_BYTES)} for memory"
            " outside PyTorch's allocator."
        )
    if best is recorded:
        return f"Fits {on_card}."
    return f"Fits {on_card}; with the recorded settings it {_instead(recorded)}."


def _retries_words(card: CardUnderSetting) -> str:
    retries = card.row.retries
    return f" ({counted(retries, 'retry', 'retries')})" if retries else ""


def _instead(recorded: Tuned) -> str:
    """What the recorded settings do, where others fit a smaller card."""
    if recorded.smallest_card is not None:
        return f"needs {a_card(recorded.smallest_card)}"
    is_open = any(card.fits is None for card in recorded.cards)
    if len(recorded.cards) == 1:
        return "may not fit" if is_open else "does not fit"
    return "may fit none of them" if is_open else "fits none of them"


def _no_card_is_certain(tuning: Tuning) -> str:
    """Which cards are too small, and which may be enough and why that is open."""
    cards = [card for tuned in tuning.tried for card in tuned.cards]
    open_sizes = {card.size_bytes for card in cards if card.fits is None}
    too_small = [
        card_words(card.size_bytes)
        for card in tuning.tried[0].cards
        if card.size_bytes not in open_sizes
    ]
    sentences = [_too_small_words(too_small, len(tuning.tried)), _open_words(tuning, open_sizes)]
    return " ".join(filter(None, sentences))


def _too_small_words(names: list[str], count: int) -> str:
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f"{listed(names)} {verb} too small with all {count} settings that were tried."


def _open_words(tuning: Tuning, sizes: set[int]) -> str:
    if not sizes:
        return ""
    names = listed([card_words(size) for size in sorted(sizes)])
    return f"{names} may be enough: {_why_open(tuning)}."


def _why_open(tuning: Tuning) -> str:
    """Why it cannot be told whether a run lives on a card."""
    if tuning.ended_by_failure:
        return "the recording ends at its failure, so the need of later steps is unknown"
    return "it depends on where the driver places segments"


def legend_of(tuning: Tuning, rows: Sequence[Tuned]) -> tuple[tuple[str, str], ...]:
    """What the words mean that a table of cards has in its cells."""
    open_cards = [card for tuned in rows for card in tuned.cards if card.fits is None]
    maybe = []
    if any(card.room_is_in_doubt for card in open_cards):
        maybe.append(_TIGHT)
    if not all(card.room_is_in_doubt for card in open_cards):
        maybe.append(_why_open(tuning))
    return ("maybe", f"maybe: {'; or '.join(maybe)}."), ("retr", _RETRY)


def a_card(size: int) -> str:
    """``a 24 GiB card``, ``an 80 GiB card``: as the number is spoken."""
    words = card_words(size)
    article = "an" if words.startswith(("8", "11 ", "11.", "18 ", "18.")) else "a"
    return f"{article} {words} card"


def card_words(size: int) -> str:
    """A card by its size: ``24 GiB``."""
    return format_size(size).replace(".00", "")
