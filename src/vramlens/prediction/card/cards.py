"""The cards that a prediction is for: what decides kernels, workspaces and room."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.errors import UsageError
from vramlens.units import MIB, check_limit, parse_size


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of GPU.

    Attributes:
        name: as ``torch.cuda.get_device_name`` gives it.
        capability: compute capability.
        total_bytes: as ``get_device_properties`` gives it.
        processors: streaming multiprocessors.
        outside_bytes: what a process takes outside the allocator (context and libraries), a low and
            a high figure.
    """

    name: str
    capability: tuple[int, int]
    total_bytes: int
    processors: int
    outside_bytes: tuple[int, int]


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
    card = CARDS.get(name.lower())
    if card is None:
        raise UsageError(f"{name!r} is not a known card: use {', '.join(CARDS)}")
    return card


def card_bytes(text: str) -> int:
    """The memory of a card: ``H100`` and other known names, or a size such as ``24G``.

    Raises:
        UsageError: it is neither.
    """
    name = text.strip()
    card = CARDS.get(name.lower())
    if card is not None:
        return card.total_bytes
    try:
        size_bytes = parse_size(name)
    except (UsageError, OverflowError, ValueError):  # the latter: more digits than any number has
        names = ", ".join(CARDS)
        raise UsageError(
            f"{text!r} is not a card: write a size such as 80G, or one of {names}"
        ) from None
    return check_limit(size_bytes, name)
