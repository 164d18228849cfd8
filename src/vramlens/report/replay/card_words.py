"""Which cards are large enough for a recorded run, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.replay.tuning import USUAL_OUTSIDE_BYTES
from vramlens.report.replay.story import conf_name
from vramlens.report.wording import listed
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.replay import Tuned, Tuning


def cards_headline(tuning: Tuning) -> str:
    """The smallest card, with the settings that the run had and with those that need less."""
    fitting = [tuned for tuned in tuning.tried if tuned.smallest_card is not None]
    if not fitting:
        return _no_card_is_certain(tuning)
    best = min(fitting, key=lambda tuned: tuned.smallest_card or 0)
    least, had = best.smallest_card or 0, _recorded(tuning).smallest_card
    if had == least:
        return f"Fits {_a_card(had)} with the recorded settings."
    instead = f"needs {_a_card(had)}" if had is not None else "may fit none of them"
    return (
        f"Fits {_a_card(least)} with {conf_name(best.row)};"
        f" with the recorded settings it {instead}."
    )


def _recorded(tuning: Tuning) -> Tuned:
    """The settings that the run had, on the cards."""
    settings = tuning.baseline.settings
    return next(tuned for tuned in tuning.tried if tuned.row.settings == settings)


def _no_card_is_certain(tuning: Tuning) -> str:
    """Which cards are too small, and which may be enough and why that is open."""
    cards = [card for tuned in tuning.tried for card in tuned.cards]
    open_sizes = {card.size_bytes for card in cards if card.fits is None}
    too_small = [
        card_words(card.size_bytes)
        for card in tuning.tried[0].cards
        if card.size_bytes not in open_sizes
    ]
    if any(card.room_is_in_doubt for card in cards):
        return _tight_fit(tuning)
    sentences = [_too_small_words(too_small, len(tuning.tried)), _open_words(tuning, open_sizes)]
    return " ".join(filter(None, sentences))


def _tight_fit(tuning: Tuning) -> str:
    """The smallest card that has the allocator's memory, and not for certain what is outside it."""
    tight = next(card for tuned in tuning.tried for card in tuned.cards if card.room_is_in_doubt)
    return (
        f"May fit {_a_card(tight.size_bytes)} with {conf_name(tight.row)}:"
        f" it leaves less than {card_words(USUAL_OUTSIDE_BYTES)} for memory outside PyTorch's"
        " allocator."
    )


def _too_small_words(names: list[str], count: int) -> str:
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f"{listed(names)} {verb} too small with all {count} settings that were tried."


def _open_words(tuning: Tuning, sizes: set[int]) -> str:
    if not sizes:
        return ""
    why = "it depends on where the driver places segments"
    if tuning.ended_by_failure:
        why = "the recording ends at its failure, so the need of later steps is unknown"
    return f"{listed([card_words(size) for size in sorted(sizes)])} may be enough: {why}."


def _a_card(size: int) -> str:
    """``a 24 GiB card``, ``an 80 GiB card``: as the number is spoken."""
    words = card_words(size)
    article = "an" if words.startswith(("8", "11 ", "11.", "18 ", "18.")) else "a"
    return f"{article} {words} card"


def card_words(size: int) -> str:
    """A card by its size: ``24 GiB``."""
    return format_size(size).replace(".00", "")
