"""Which cards are large enough for a recorded run, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.replay.tuning import USUAL_OUTSIDE_BYTES
from vramlens.report.replay.story import conf_name
from vramlens.report.wording import listed
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.replay import Tuning


def cards_headline(tuning: Tuning) -> str:
    """The smallest card, with the settings that the run had and with those that need less."""
    recorded = next(
        tuned for tuned in tuning.tried if tuned.row.settings == tuning.baseline.settings
    )
    sizes = {tuned.row.settings: tuned.smallest_card for tuned in tuning.tried}
    fitting = [tuned for tuned in tuning.tried if sizes[tuned.row.settings] is not None]
    tight = next(
        (card for tuned in tuning.tried for card in tuned.cards if card.room_is_in_doubt), None
    )
    if not fitting and tight is not None:
        size, outside = card_words(tight.size_bytes), card_words(USUAL_OUTSIDE_BYTES)
        return (
            f"May fit a {size} card with {conf_name(tight.row)}: it leaves less than {outside} for"
            " memory outside PyTorch's allocator."
        )
    if not fitting:
        return _no_card_is_certain(tuning)
    best = min(fitting, key=lambda tuned: sizes[tuned.row.settings] or 0)
    had, least = sizes[recorded.row.settings], sizes[best.row.settings]
    if had is not None and had == least:
        return f"Fits a {card_words(had)} card with the recorded settings."
    instead = f"needs a {card_words(had)} card" if had is not None else "may fit none of them"
    return (
        f"Fits a {card_words(least or 0)} card with {conf_name(best.row)};"
        f" with the recorded settings it {instead}."
    )


def _no_card_is_certain(tuning: Tuning) -> str:
    """Which cards are too small, and which may be enough and why that is open."""
    sizes = [card.size_bytes for card in tuning.tried[0].cards]
    open_sizes = {
        card.size_bytes for tuned in tuning.tried for card in tuned.cards if card.fits is None
    }
    too_small = [card_words(size) for size in sizes if size not in open_sizes]
    may_do = [card_words(size) for size in sizes if size in open_sizes]
    sentences = []
    if too_small:
        verb = "is" if len(too_small) == 1 else "are"
        count = len(tuning.tried)
        sentences.append(
            f"{listed(too_small)} {verb} too small with all {count} settings that were tried."
        )
    if may_do:
        why = "it depends on where the driver places segments"
        if tuning.ended_by_failure:
            why = "the recording ends at its failure, so the need of later steps is unknown"
        sentences.append(f"{listed(may_do)} may be enough: {why}.")
    return " ".join(sentences)


def card_words(size: int) -> str:
    """A card by its size: ``24 GiB``."""
    return format_size(size).replace(".00", "")
