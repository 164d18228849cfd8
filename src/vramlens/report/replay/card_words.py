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
    fitting = [
        (tuned.smallest_card, tuned) for tuned in tuning.tried if tuned.smallest_card is not None
    ]
    if not fitting:
        return _surely_fits_none(tuning)
    smallest, best = min(fitting, key=lambda size_and_setting: size_and_setting[0])
    had = next(tuned.smallest_card for tuned in tuning.tried if is_recorded(tuning, tuned))
    if had == smallest:
        return f"Fits a {card_words(smallest)} card with the recorded settings."
    instead = f"needs a {card_words(had)} card" if had is not None else "may fit none of them"
    return (
        f"Fits a {card_words(smallest)} card with {conf_name(best.row)};"
        f" with the recorded settings it {instead}."
    )


def _surely_fits_none(tuning: Tuning) -> str:
    """The card that may be large enough, where none surely is."""
    cards = (card for tuned in tuning.tried for card in tuned.cards)
    tight = next((card for card in cards if card.room_is_in_doubt), None)
    if tight is None:
        return _no_card_is_certain(tuning)
    size, outside = card_words(tight.size_bytes), card_words(USUAL_OUTSIDE_BYTES)
    return (
        f"May fit a {size} card with {conf_name(tight.row)}: it leaves less than {outside} for"
        " memory outside PyTorch's allocator."
    )


def is_recorded(tuning: Tuning, tuned: Tuned) -> bool:
    """True for the settings that the run had."""
    return tuned.row.settings == tuning.baseline.settings


def _no_card_is_certain(tuning: Tuning) -> str:
    """Which cards are too small, and which may be enough and why that is open."""
    open_sizes = _open_sizes(tuning)
    sizes = [card.size_bytes for card in tuning.tried[0].cards]
    too_small = [card_words(size) for size in sizes if size not in open_sizes]
    may_do = [card_words(size) for size in sizes if size in open_sizes]
    sentences = []
    if too_small:
        sentences.append(_too_small_sentence(too_small, len(tuning.tried)))
    if may_do:
        sentences.append(f"{listed(may_do)} may be enough: {_why_open(tuning)}.")
    return " ".join(sentences)


def _open_sizes(tuning: Tuning) -> set[int]:
    cards = (card for tuned in tuning.tried for card in tuned.cards)
    return {card.size_bytes for card in cards if card.fits is None}


def _too_small_sentence(cards: list[str], count: int) -> str:
    verb = "is" if len(cards) == 1 else "are"
    return f"{listed(cards)} {verb} too small with all {count} settings that were tried."


def _why_open(tuning: Tuning) -> str:
    if tuning.ended_by_failure:
        return "the recording ends at its failure, so the need of later steps is unknown"
    return "it depends on where the driver places segments"


def card_words(size: int) -> str:
    """A card by its size: ``24 GiB``."""
    return format_size(size).replace(".00", "")
