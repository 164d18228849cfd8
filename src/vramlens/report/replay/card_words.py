"""Which cards are large enough for a recorded run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.report.replay.story import conf_name, own_settings
from vramlens.units import agreeing, counted, format_size, joined

if TYPE_CHECKING:
    from vramlens.replay import CardUnderSetting, Tuned, Tuning


_TIGHT = "less than 1 GiB is left for memory outside PyTorch's allocator"
_CLOSE = (
    "the predicted peak is close to what the card has left beside the CUDA context, and the"
    " prediction may be off"
)
_OUTSIDE = "(often 0.5 to 1 GiB), which this recording does not contain"
_RETRY = (
    "retry: the card is too small for this peak, so PyTorch frees its cache and tries"
    " again. The run completes, but each retry costs time."
)


def cards_headline(tuning: Tuning) -> str:
    """The smallest card that it fits, with the settings that the run had or with those that need
    less; and what becomes of it on smaller ones.
    """
    recorded = tuning.as_recorded
    best = min((recorded, *tuning.tried), key=lambda tuned: tuned.card_rank)
    card = best.smallest
    sizes = [card.size_bytes for card in recorded.cards]
    if card is None:
        return _uncertain_cards(tuning, sizes)
    smaller = [size for size in sizes if size < card.size_bytes]
    sentences = [_smallest_words(tuning, best, card), _uncertain_cards(tuning, smaller)]
    return " ".join(filter(None, sentences))


def _smallest_words(tuning: Tuning, best: Tuned, card: CardUnderSetting) -> str:
    """The smallest card, and with which settings."""
    recorded = tuning.as_recorded
    recorded_settings = own_settings(tuning.recorded)
    who = recorded_settings if best is recorded else conf_name(best.row)
    larger = [other.fits for other in best.cards if other.size_bytes > card.size_bytes]
    more = " and larger ones" if larger and card.fits and all(larger) else ""
    on_card = f"{a_card(card.size_bytes)}{more} with {who}{_retries_words(card)}"
    if not card.fits:
        return f"May fit {on_card}: {_room_words(tuning)}."
    if best is recorded:
        return f"Fits {on_card}."
    return f"Fits {on_card}; with {recorded_settings} it {_instead(recorded)}."


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


def _uncertain_cards(tuning: Tuning, sizes: Sequence[int]) -> str:
    """Which of some cards are too small, and which may be enough and why that is open."""
    cards = [card for tuned in tuning.tried for card in tuned.cards if card.fits is None]
    undecided = [card for card in cards if card.size_bytes in sizes]
    open_sizes = {card.size_bytes for card in undecided}
    too_small = [card_words(size) for size in sizes if size not in open_sizes]
    sentences = [_too_small_words(too_small, len(tuning.tried)), _open_words(tuning, undecided)]
    return " ".join(filter(None, sentences))


def _too_small_words(names: list[str], count: int) -> str:
    if not names:
        return ""
    verb = agreeing(len(names), "is", "are")
    return f"{joined(names)} {verb} too small with all {count} settings that were tried."


def _open_words(tuning: Tuning, cards: Sequence[CardUnderSetting]) -> str:
    if not cards:
        return ""
    names = joined([card_words(size) for size in sorted({card.size_bytes for card in cards})])
    return f"{names} may be enough: {'; or '.join(_whys_open(tuning, cards))}."


def _whys_open(tuning: Tuning, cards: Sequence[CardUnderSetting]) -> list[str]:
    """Why it cannot be told whether a run lives on some cards, each reason once."""
    return list(dict.fromkeys(_why_open(tuning, card) for card in cards))


def _why_open(tuning: Tuning, card: CardUnderSetting) -> str:
    if card.room_is_in_doubt:
        return _room_words(tuning)
    if card.is_undecided:
        return f"made-up numbers decide; a run may need only {format_size(card.sure_bytes or 0)}"
    if card.may_need_more:
        return "only a made-up number ends a loop, which may take more iterations"
    if tuning.ended_by_failure:
        return "the recording ends at its failure, so the need of later steps is unknown"
    return "it depends on where the driver places segments"


def _room_words(tuning: Tuning) -> str:
    """Why the room on a card is in doubt."""
    return _CLOSE if tuning.recorded.is_prediction else _TIGHT


def legend_of(tuning: Tuning, rows: Sequence[Tuned]) -> tuple[tuple[str, str], ...]:
    """What the words mean that a table of cards has in its cells."""
    open_cards = [card for tuned in rows for card in tuned.cards if card.fits is None]
    whys = [
        f"{_TIGHT} {_OUTSIDE}" if why == _TIGHT else why for why in _whys_open(tuning, open_cards)
    ]
    maybe = "; or ".join(whys)
    return ("maybe", f"maybe: {maybe}."), ("retr", _RETRY)


def a_card(size: int) -> str:
    """``a 24 GiB card``, ``an 80 GiB card``: as the number is spoken."""
    words = card_words(size)
    article = "an" if words.startswith(("8", "11 ", "11.", "18 ", "18.")) else "a"
    return f"{article} {words} card"


def card_words(size: int) -> str:
    """A card by its size: ``24 GiB``."""
    return format_size(size).replace(".00", "")
