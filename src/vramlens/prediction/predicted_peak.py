"""A prediction: its peaks, the range in which it holds, what it rests on, and the cards that it
fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vramlens.capture.recording.recording_file import SCHEMA, write_recording
from vramlens.ground.wrapped_lines import wrapped_lines
from vramlens.prediction.card.cards import Card
from vramlens.units import GIB, MIB, counted, format_size

USUAL_CARDS = tuple(size * GIB for size in (8, 12, 16, 24, 40, 48, 80, 141))


@dataclass(frozen=True, slots=True)
class NotModelled:
    """Something that a run may ask for beyond the prediction.

    Attributes:
        what: in words.
        bytes: its likely most; None where nobody knows.
    """

    what: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class CardFit:
    """Whether a program fits a card.

    Attributes:
        total_bytes: the card's memory.
        fits: None where the range decides nothing.
    """

    total_bytes: int
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The peak of a program that did not run on a GPU; printed it is a few lines.

    Attributes:
        peaks: requested_bytes, allocated_bytes, active_bytes and reserved_bytes at their most.
        low_bytes, high_bytes: between which the peak reserved lies.
        basis: the rules that decide it, in words.
        not_modelled: what may come on top.
        cards: which of them it fits.
        gpu, torch: for which card, and by the rules of which version.
        steps: optimizer steps that were taken.
        seconds: that the prediction took.
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

    @property
    def allocated_bytes(self) -> int:
        """The most bytes of live tensors, as ``torch.cuda.max_memory_allocated`` would say."""
        return self.peaks["allocated_bytes"]

    @property
    def reserved_bytes(self) -> int:
        """The most bytes that PyTorch would have from the driver (``max_memory_reserved``)."""
        return self.peaks["reserved_bytes"]

    def write(self, path: str) -> None:
        """Writes the prediction as a recording, which every verb takes.

        Raises:
            OSError: it cannot be written; what was there before stays.
        """
        write_recording(path, self.snapshot, {"meta": self.meta}, None)

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
            "cards": [{"total_bytes": card.total_bytes, "fits": card.fits} for card in self.cards],
            "gpu": self.gpu,
            "torch": self.torch,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        low, high = format_size(self.low_bytes), format_size(self.high_bytes)
        lines = [
            f"Predicted peak reserved: {format_size(self.reserved_bytes)}"
            f" (between {low} and {high})",
            f"  peak allocated: {format_size(self.allocated_bytes)};"
            f" {counted(self.steps, 'optimizer step')}",
            f"  on {self.gpu} with PyTorch {self.torch}, predicted in {self.seconds:.1f} s without"
            " a GPU",
        ]
        lines += _card_lines(self.cards)
        for unknown in self.not_modelled:
            size = "" if unknown.bytes is None else f" (up to {format_size(unknown.bytes)})"
            lines.append(f"  not included: {unknown.what}{size}")
        return "\n".join(broken for line in lines for broken in wrapped_lines(line))


def _card_lines(cards: tuple[CardFit, ...]) -> Iterator[str]:
    """On which cards it fits: a larger card than one that it fits on needs no mention."""
    sizes = {
        fits: sorted(card.total_bytes for card in cards if card.fits is fits)
        for fits in (True, None, False)
    }
    if sizes[True]:
        more = " and more" if len(sizes[True]) > 1 else ""
        yield f"  fits: {format_size(sizes[True][0])}{more}"
    if sizes[None]:
        yield f"  may fit: {', '.join(map(format_size, sizes[None]))}"
    if sizes[False]:
        less = " and less" if len(sizes[False]) > 1 else ""
        yield f"  does not fit: {format_size(sizes[False][-1])}{less}"


def fits_of(
    low_bytes: int, high_bytes: int, totals: tuple[int, ...], card: Card
) -> tuple[CardFit, ...]:
    """Whether a range of reserved bytes fits cards, beside what a process takes outside the
    allocator.
    """
    least_outside, most_outside = card.outside_bytes
    fits = []
    for total in totals:
        if high_bytes + most_outside <= total:
            fits.append(CardFit(total, True))
        elif low_bytes + least_outside > total:
            fits.append(CardFit(total, False))
        else:
            fits.append(CardFit(total, None))
    return tuple(fits)


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
        "module_marks": True,
        "autocast": has_autocast,
    }


def margins(reserved_bytes: int, share: float) -> int:
    """Bytes by which a prediction may be off: a share of it, and one segment of the allocator's."""
    return int(reserved_bytes * share) + 22 * MIB
