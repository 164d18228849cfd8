"""The cards that a prediction is for: what decides kernels, workspaces and room."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.errors import UsageError
from vramlens.units import MIB


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
    "h200": Card("NVIDIA H200", (9, 0), 150109880320, 132, (450 * MIB, 900 * MIB)),
    "h100": Card("NVIDIA H100 80GB HBM3", (9, 0), 85014020096, 132, (450 * MIB, 900 * MIB)),
    "a100": Card("NVIDIA A100-SXM4-80GB", (8, 0), 85095874560, 108, (400 * MIB, 800 * MIB)),
    "a100-40": Card("NVIDIA A100-SXM4-40GB", (8, 0), 42298834944, 108, (400 * MIB, 800 * MIB)),
    "l4": Card("NVIDIA L4", (8, 9), 23580639232, 58, (250 * MIB, 600 * MIB)),
    "a10g": Card("NVIDIA A10G", (8, 6), 23827120128, 80, (250 * MIB, 600 * MIB)),
    "4090": Card("NVIDIA GeForce RTX 4090", (8, 9), 25386352640, 128, (300 * MIB, 700 * MIB)),
    "t4": Card("Tesla T4", (7, 5), 15828320256, 40, (150 * MIB, 500 * MIB)),
}


def card_named(name: str) -> Card:
    """The card of a name.

    Raises:
        UsageError: none has it.
    """
    card = CARDS.get(name.lower())
    if card is None:
        raise UsageError(f"{name!r} is no card that is known here: say {', '.join(CARDS)}")
    return card
