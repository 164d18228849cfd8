"""The cards that a prediction is for: what decides kernels, workspaces and room."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramlens.errors import UsageError
from vramlens.units import GIB, MIB, check_limit, format_size, parse_size

_BRANDS = re.compile(r"nvidia|geforce|tesla|rtx|[\s_-]|(?<=\d)gb$")
"""What people write or leave out: ``rtx4090``, ``RTX 4090`` and ``4090`` are one card."""


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of GPU.

    Attributes:
        name: as ``torch.cuda.get_device_name`` gives it.
        capability: compute capability.
        total_bytes: as ``get_device_properties`` gives it (of the L40S and the B200 what PyTorch's
            messages say, in hundredths of a GiB).
        processors: streaming multiprocessors.
        outside_bytes: what a process takes outside the allocator (context and libraries), a low and
            a high figure.
    """

    name: str
    capability: tuple[int, int]
    total_bytes: int
    processors: int
    outside_bytes: tuple[int, int]

    @property
    def room_bytes(self) -> int:
        """What is left for the allocator beside the least that a process takes outside it."""
        return self.total_bytes - self.outside_bytes[0]


CARDS = {
    "h200": Card(
        name="NVIDIA H200",
        capability=(9, 0),
        total_bytes=150109880320,
        processors=132,
        outside_bytes=(450 * MIB, 900 * MIB),
    ),
    "h100": Card(
        name="NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        total_bytes=85014020096,
        processors=132,
        outside_bytes=(450 * MIB, 900 * MIB),
    ),
    "a100": Card(
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        total_bytes=85095874560,
        processors=108,
        outside_bytes=(400 * MIB, 800 * MIB),
    ),
    "a100-40": Card(
        name="NVIDIA A100-SXM4-40GB",
        capability=(8, 0),
        total_bytes=42298834944,
        processors=108,
        outside_bytes=(400 * MIB, 800 * MIB),
    ),
    "l4": Card(
        name="NVIDIA L4",
        capability=(8, 9),
        total_bytes=23580639232,
        processors=58,
        outside_bytes=(250 * MIB, 600 * MIB),
    ),
    "a10g": Card(
        name="NVIDIA A10G",
        capability=(8, 6),
        total_bytes=23827120128,
        processors=80,
        outside_bytes=(250 * MIB, 600 * MIB),
    ),
    "4090": Card(
        name="NVIDIA GeForce RTX 4090",
        capability=(8, 9),
        total_bytes=25386352640,
        processors=128,
        outside_bytes=(300 * MIB, 700 * MIB),
    ),
    "3090": Card(
        name="NVIDIA GeForce RTX 3090",
        capability=(8, 6),
        total_bytes=25447170048,
        processors=82,
        outside_bytes=(250 * MIB, 700 * MIB),
    ),
    "5090": Card(
        name="NVIDIA GeForce RTX 5090",
        capability=(12, 0),
        total_bytes=33677180928,
        processors=170,
        outside_bytes=(300 * MIB, 900 * MIB),
    ),
    "a6000": Card(
        name="NVIDIA RTX A6000",
        capability=(8, 6),
        total_bytes=51050250240,
        processors=84,
        outside_bytes=(250 * MIB, 700 * MIB),
    ),
    "l40s": Card(
        name="NVIDIA L40S",
        capability=(8, 9),
        total_bytes=int(44.40 * GIB),
        processors=142,
        outside_bytes=(250 * MIB, 700 * MIB),
    ),
    "v100": Card(
        name="Tesla V100-SXM2-16GB",
        capability=(7, 0),
        total_bytes=16945512448,
        processors=80,
        outside_bytes=(250 * MIB, 700 * MIB),
    ),
    "v100-32": Card(
        name="Tesla V100-SXM2-32GB",
        capability=(7, 0),
        total_bytes=34089730048,
        processors=80,
        outside_bytes=(250 * MIB, 700 * MIB),
    ),
    "b200": Card(
        name="NVIDIA B200",
        capability=(10, 0),
        total_bytes=int(178.35 * GIB),
        processors=148,
        outside_bytes=(450 * MIB, 1000 * MIB),
    ),
    "t4": Card(
        name="Tesla T4",
        capability=(7, 5),
        total_bytes=15828320256,
        processors=40,
        outside_bytes=(150 * MIB, 500 * MIB),
    ),
}
DEFAULT_GPU = "h200"
"""The card of a prediction where nobody names one."""


def card_named(name: str) -> Card:
    """The card of a name.

    Raises:
        UsageError: none has it.
    """
    key = _key_of(name)
    if key is None:
        raise UsageError(f"{name!r} is not a known card: use {', '.join(CARDS)}")
    return CARDS[key]


def is_card(name: str) -> bool:
    """Whether a card has this name."""
    return _key_of(name) is not None


def card_key(total_bytes: int) -> str | None:
    """The name of the card that has exactly these bytes; None for a size that is no card's."""
    return next((key for key, card in CARDS.items() if card.total_bytes == total_bytes), None)


def card_of_device(device_name: str) -> str | None:
    """The name of a card by what a driver calls the device: of those with all parts of a card's
    name the one with the most, so ``NVIDIA A100-PCIE-40GB`` is ``a100-40``.
    """
    words = re.findall(r"[^\W_]+", device_name.lower())
    parts = {word.removesuffix("gb") for word in words}
    named = [key for key in CARDS if parts.issuperset(key.split("-"))]
    return max(named, key=len, default=None)


def card_label(total_bytes: int) -> str:
    """A card in words: ``24.00 GiB``, or ``4090 (23.64 GiB)`` where a card was named."""
    key, size = card_key(total_bytes), format_size(total_bytes)
    return size if key is None else f"{key} ({size})"


def _key_of(name: str) -> str | None:
    bare = _bare(name)
    return next(
        (key for key, card in CARDS.items() if bare and bare in (_bare(key), _bare(card.name))),
        None,
    )


def _bare(name: str) -> str:
    return _BRANDS.sub("", name.lower())


def card_bytes(text: str) -> int:
    """The memory of a card: ``H100`` and other known names, or a size such as ``24G``.

    Raises:
        UsageError: it is neither.
    """
    name = text.strip()
    key = _key_of(name)
    if key is not None:
        return CARDS[key].total_bytes
    try:
        size_bytes = parse_size(name)
    except (UsageError, OverflowError, ValueError):  # the latter: more digits than any number has
        names = ", ".join(CARDS)
        raise UsageError(
            f"{text!r} is not a card: write a size such as 80G, or one of {names}"
        ) from None
    return check_limit(size_bytes, name)
