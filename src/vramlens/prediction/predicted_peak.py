"""A prediction: its peaks, the range in which it holds, what it rests on, and the cards that it
fits.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vramlens.analyses.undecided_run import meaning_of
from vramlens.capture.recording.recording_file import SCHEMA, write_recording
from vramlens.capture.recording.redact import Redaction, is_redaction_wanted
from vramlens.cards.card_room import CardRoom, PredictionMargins
from vramlens.cards.known_cards import Card, card_label
from vramlens.ground.wrapped_lines import wrapped_lines
from vramlens.trace import DecisionsMeta
from vramlens.units import GIB, agreeing, counted, format_size, listed

if TYPE_CHECKING:
    from vramlens.prediction.full_cards.card_failure import CardFailure
    from vramlens.prediction.requests.served_requests import ServedRequests

_MOST_LOOPS = 3
USUAL_CARDS = tuple(size * GIB for size in (8, 12, 16, 24, 40, 48, 80, 141))


@dataclass(frozen=True, slots=True)
class NotModelled:
    """Something that a run may ask for beyond the prediction.

    Attributes:
        what: in words.
        bytes: its likely most; None where nobody knows.
        is_assumption: whether it is what was assumed where nobody knows.
    """

    what: str
    bytes: int | None
    is_assumption: bool = False


@dataclass(frozen=True, slots=True)
class CardFit:
    """Whether a program fits a card.

    Attributes:
        total_bytes: the card's memory.
        fits: None where the range decides nothing.
        retries: how often the allocator would give back its cache to stay within the card.
    """

    total_bytes: int
    fits: bool | None
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """The peak of a program that did not run on a GPU; printed it is a few lines.

    Attributes:
        peaks: requested_bytes, allocated_bytes, active_bytes and reserved_bytes at their most.
        low_bytes, high_bytes: between which the peak reserved lies.
        basis: the rules that decide it, in words.
        not_modelled: what may come on top, and what was assumed of sizes that values decide.
        cards: which of them it fits.
        gpu, torch: for which card, and by the rules of which version.
        steps: optimizer steps that were taken.
        seconds: that the prediction took.
        retries: how often the allocator gives back its cache, as the card is full.
        decisions: the lines of the user's, as (file, line), that end a loop or choose a branch by
            a made-up number.
        sure_bytes: peak requested if those lines decide for the least that a run can do; None
            where that is as good as all of it.
        turns_are_open: whether memory hangs on the turns of a loop that only such a number ends:
            then no card is sure to fit.
        turns: the loops that such a number may end, as (file, line, the most turns they took here).
        outside_bytes: what a process takes of a card beside the peaks (the CUDA context and
            libraries), a low and a high figure.
        own_limit: whether it fits the limit that it has set itself
            (``set_per_process_memory_fraction``); None without one.
        failure: what happens within that limit if it is too small, else on the largest of the cards that
            were asked for and are; None where none is. Where only gaps between blocks fail it, the tensors
            have no names.
    """

    peaks: Mapping[str, int]
    low_bytes: int
    high_bytes: int
    basis: tuple[str, ...]
    not_modelled: tuple[NotModelled, ...]
    cards: tuple[CardFit, ...]
    gpu: str
    torch: str
    steps: int
    seconds: float
    snapshot: Mapping[str, Any] = field(repr=False, compare=False)
    meta: Mapping[str, Any] = field(repr=False, compare=False)
    retries: int = 0
    decisions: tuple[tuple[str, int], ...] = ()
    sure_bytes: int | None = None
    turns_are_open: bool = False
    turns: tuple[tuple[str, int, int], ...] = ()
    outside_bytes: tuple[int, int] = (0, 0)
    own_limit: CardFit | None = None
    failure: CardFailure | None = field(default=None, repr=False, compare=False)

    @property
    def allocated_bytes(self) -> int:
        """The most bytes of live tensors, as ``torch.cuda.max_memory_allocated`` would say."""
        return self.peaks["allocated_bytes"]

    @property
    def reserved_bytes(self) -> int:
        """The most bytes that PyTorch would have from the driver (``max_memory_reserved``)."""
        return self.peaks["reserved_bytes"]

    def write(self, path: str, *, redact: bool | None = None) -> None:
        """Writes the prediction as a recording, which every verb takes.

        Args:
            path: the file to write.
            redact: whether it leaves out paths, arguments and the host name; by default as the
                environment's VRAMLENS_REDACT=1 says.

        Raises:
            OSError: it cannot be written, or would reveal them; what was there before stays.
        """
        _write(path, self.snapshot, self.meta, {}, redact=redact)

    def write_failure(self, path: str, *, redact: bool | None = None) -> None:
        """Writes what happens on the card that is too small as a recording up to the request that
        fails there.

        Args:
            path, redact: as in ``write``.

        Raises:
            OSError: as in ``write``.
            ValueError: there is no such failure.
        """
        if self.failure is None:
            raise ValueError("the prediction has no failure")
        failure = self.failure
        _write(path, failure.snapshot, failure.meta, {"names": failure.names}, redact=redact)

    def to_json(self) -> dict[str, Any]:
        """The ``prediction`` of ``--json``."""
        return {
            "low_bytes": self.low_bytes,
            "high_bytes": self.high_bytes,
            "confidence": "estimated",
            "basis": list(self.basis),
            "not_modelled": [
                {"what": unknown.what, "bytes": unknown.bytes} for unknown in self.not_modelled
            ],
            "cards": list(map(_card_json, self.cards)),
            "own_limit": None if self.own_limit is None else _card_json(self.own_limit),
            "gpu": self.gpu,
            "torch": self.torch,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "retries": self.retries,
            "made_up_turns": [
                {"file": file, "line": line, "turns": turns} for file, line, turns in self.turns
            ],
            **decided_facts(DecisionsMeta(self.decisions, self.sure_bytes, self.turns_are_open)),
        }

    def __str__(self) -> str:
        low, high = format_size(self.low_bytes), format_size(self.high_bytes)
        steps = f"; {counted(self.steps, 'optimizer step')}" if self.steps else ""
        lines = [
            f"Predicted peak reserved: {format_size(self.reserved_bytes)}"
            f" (between {low} and {high})",
            f"  peak allocated: {format_size(self.allocated_bytes)}{steps}",
            f"  on {self.gpu} with PyTorch {self.torch}, predicted in {self.seconds:.1f} s without"
            " a GPU",
        ]
        if self.retries:
            lines.append(
                f"  the card is full then, with {counted(self.retries, 'retry', 'retries')}:"
                f" {_cost_of(self.retries)}"
            )
        lines += _own_limit_lines(self.own_limit)
        lines += _card_lines(self.cards)
        lines += _outside_lines(self.cards, self.outside_bytes)
        lines += _full_card_lines(self)
        for unknown in self.not_modelled:
            size = "" if unknown.bytes is None else f" (up to {format_size(unknown.bytes)})"
            label = "" if unknown.is_assumption else "not included: "
            lines.append(f"  {label}{unknown.what}{size}")
        lines += _made_up_lines(self)
        return "\n".join(broken for line in lines for broken in wrapped_lines(line))


def _write(
    path: str,
    snapshot: Mapping[str, Any],
    meta: Mapping[str, Any],
    parts: Mapping[str, Any],
    *,
    redact: bool | None,
) -> None:
    """Writes a recording; without what is private, where that is wanted."""
    if not is_redaction_wanted(redact):
        write_recording(path, snapshot, {"meta": meta, **parts}, None)
        return
    redaction = Redaction(meta.get("command", ()))
    own_snapshot, own_meta = pickle.loads(pickle.dumps((dict(snapshot), dict(meta)), 4))
    redacted_parts = redaction.recording(own_snapshot, own_meta, parts)
    all_parts = {"meta": own_meta, **redacted_parts}
    write_recording(path, own_snapshot, all_parts, None, check=redaction.check)


def _card_json(card: CardFit) -> dict[str, Any]:
    return {"total_bytes": card.total_bytes, "fits": card.fits, "retries": card.retries}


def _own_limit_lines(limit: CardFit | None) -> Iterator[str]:
    """Whether it fits the limit that it has set itself."""
    if limit is not None:
        verb = {True: "fits", None: "may fit", False: "does not fit"}[limit.fits]
        yield f"  {verb}: the limit that the script sets itself, {format_size(limit.total_bytes)}"


def _card_lines(cards: tuple[CardFit, ...]) -> Iterator[str]:
    """On which cards it fits: each that was asked for; of the usual ones a larger card than one that
    it fits on needs no mention.
    """
    are_usual = {card.total_bytes for card in cards} == set(USUAL_CARDS)
    sizes = {
        fits: sorted(card.total_bytes for card in cards if card.fits is fits)
        for fits in (True, None, False)
    }
    if sizes[True]:
        yield f"  fits: {_named_cards(sizes[True], 'more' if are_usual else '')}"
        yield from _retry_lines(cards)
    if sizes[None]:
        yield f"  may fit: {', '.join(map(card_label, sizes[None]))}"
    if sizes[False]:
        yield f"  does not fit: {_named_cards(sizes[False][::-1], 'less' if are_usual else '')}"


def _named_cards(sizes: Sequence[int], beyond: str) -> str:
    """The cards of these sizes; the first alone, where a word stands for those beyond it."""
    if beyond and len(sizes) > 1:
        return f"{card_label(sizes[0])} and {beyond}"
    return ", ".join(map(card_label, sorted(sizes)))


def outside_words(outside_bytes: tuple[int, int]) -> str:
    """What the CUDA context and libraries take: ``0.4 to 0.9 GiB``."""
    low, high = (f"{size / GIB:.1f}" for size in outside_bytes)
    return f"{low} to {high} GiB"


def _outside_lines(cards: tuple[CardFit, ...], outside_bytes: tuple[int, int]) -> Iterator[str]:
    """What of a card is not for PyTorch, so that a range below its size need not fit it."""
    if cards and outside_bytes[1]:
        which = agreeing(len(cards), "of it", "of each card")
        yield (
            f"    {outside_words(outside_bytes)} {which} also go to the CUDA context and libraries"
        )


def _full_card_lines(prediction: Prediction) -> Iterator[str]:
    """Why a card fits that is smaller than the range's upper end and what is beside it, where no
    retry has told that already.
    """
    high = prediction.high_bytes
    sizes = sorted(
        card.total_bytes
        for card in prediction.cards
        if card.fits and not card.retries
        if high + prediction.outside_bytes[1] > card.total_bytes
    )
    if sizes:
        fit = agreeing(len(sizes), "fits", "fit")
        yield (
            f"    {_named_cards(sizes, '')} {fit} at {format_size(high)}, too: on a full card"
            " PyTorch frees cached blocks"
        )


def _retry_lines(cards: tuple[CardFit, ...]) -> Iterator[str]:
    """Which cards are full at times, which costs time and kills nothing."""
    full = sorted(
        (card for card in cards if card.fits and card.retries), key=lambda card: card.total_bytes
    )
    if full:
        first = counted(full[0].retries, "retry", "retries")
        counts = [first, *(f"{card.retries:,}" for card in full[1:])]
        sizes = [card_label(card.total_bytes) for card in full]
        on_cards = ", ".join(
            f"{count} on {size}" for count, size in zip(counts, sizes, strict=True)
        )
        cost = _cost_of(sum(card.retries for card in full))
        yield f"    with {on_cards}: it completes, but {cost}"


def _made_up_lines(prediction: Prediction) -> Iterator[str]:
    """What is made up, and what that decides."""
    yield "  numbers that the script prints are made up: tensors have no values"
    near = tuple((near_path(file), line) for file, line in prediction.decisions)
    if near:
        number_words = agreeing(len(near), "such a number", "such numbers")
        decided = DecisionsMeta(near, prediction.sure_bytes, prediction.turns_are_open)
        yield f"  {number_words} {meaning_of(decided)}"
    yield from _turn_lines(prediction.turns)


def _turn_lines(turns: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
    """How many turns were predicted of loops that made-up numbers may end, and what bounds them."""
    if turns:
        counts = [
            f"{counted(count, 'iteration')} at {near_path(file)}:{line}"
            for file, line, count in turns
        ]
        yield (
            f"  predicted with {listed(counts, _MOST_LOOPS)}: to predict fewer or more, cap the"
            " loop in the script; --steps N ends the run after N optimizer steps"
        )


def near_path(file: str) -> str:
    """A file as a person would type it."""
    try:
        return min(os.path.relpath(file), file, key=len)
    except (OSError, ValueError):  # the present folder is gone; another drive
        return file


def _cost_of(retries: int) -> str:
    determiner = agreeing(retries, "the", "each")
    return f"{determiner} retry frees PyTorch's cache and costs time"


def fits_of(
    rooms: Sequence[CardRoom], served: ServedRequests, *, turns_are_open: bool = False
) -> tuple[CardFit, ...]:
    """Whether requests that were served within each of these rooms fit the cards.

    Args:
        turns_are_open: whether there may be more of them, nobody knows how many.
    """
    fits = (_fit_of(room, served) for room in rooms)
    return tuple(
        CardFit(fit.total_bytes, None) if turns_are_open and fit.fits else fit for fit in fits
    )


def _fit_of(room: CardRoom, served: ServedRequests) -> CardFit:
    at_least, at_most = served.within[room.least_bytes], served.within[room.most_bytes]
    if served.floor_bytes > room.free_bytes or at_most.lives is False:
        return CardFit(room.total_bytes, False)
    if at_least.lives:
        return CardFit(room.total_bytes, True, at_least.retries)
    return CardFit(room.total_bytes, None)


def meta_of(
    command: list[str],
    card: Card,
    torch_version: str,
    python: str,
    steps: int,
    *,
    has_autocast: bool,
) -> dict[str, Any]:
    """``meta.json`` of a predicted recording."""
    from vramlens import __version__

    return {
        "schema": SCHEMA,
        "vramlens": __version__,
        "torch": torch_version,
        "python": python,
        "command": command,
        "trigger": "predicted",
        "device_name": f"{card.name} (predicted)",
        "total_bytes": {"0": card.total_bytes},
        "devices": {
            "0": {"name": card.name, "total_bytes": card.total_bytes, "memory_fraction": 1.0}
        },
        "step": steps,
        "step_source": "optimizer",
        "module_marks": True,
        "autocast": has_autocast,
    }


def margin_facts(margins: PredictionMargins) -> dict[str, Any]:
    """What the prediction leaves open of a card, for a recording's ``meta.json``."""
    return {
        "margins": {
            "share": margins.share,
            "outside_bytes": list(margins.outside_bytes),
            "not_modelled_bytes": margins.not_modelled_bytes,
        }
    }


def decided_facts(decisions: DecisionsMeta) -> dict[str, Any]:
    """What made-up numbers decide, as ``--json`` and a recording's ``meta.json`` have it."""
    return {
        "made_up_decisions": [{"file": file, "line": line} for file, line in decisions.places],
        "sure_bytes": decisions.sure_bytes,
        "turns_are_open": decisions.is_open,
    }
