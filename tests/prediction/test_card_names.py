"""The cards by name: as people write them, and as the help lists them."""

from __future__ import annotations

import pytest

from vramlens.cli.arguments import CARD_NAMES
from vramlens.prediction.card.cards import CARDS, card_bytes, card_label, card_named
from vramlens.units import GIB


def test_the_help_names_every_card() -> None:
    assert list(CARDS) == list(CARD_NAMES)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("rtx4090", "4090"),
        ("RTX 4090", "4090"),
        ("GeForce RTX 3090", "3090"),
        ("V100 32GB", "v100-32"),
        ("Tesla T4", "t4"),
        ("A100-40GB", "a100-40"),
        ("NVIDIA H100 80GB HBM3", "h100"),
    ],
)
def test_a_card_is_known_however_it_is_written(text: str, key: str) -> None:
    assert card_named(text) is CARDS[key]
    assert card_bytes(text) == CARDS[key].total_bytes


def test_a_size_is_no_card() -> None:
    assert card_label(24 * GIB) == "24.00 GiB"
    assert card_bytes("24GB") < card_bytes("24GiB")
