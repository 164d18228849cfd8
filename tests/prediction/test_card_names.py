"""The cards by name: as people write them, and as the help lists them."""

from __future__ import annotations

import pytest

from vramlens.cards.known_cards import CARDS, card_bytes, card_label, card_named, card_of_device
from vramlens.units import GIB


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


@pytest.mark.parametrize("key", CARDS)
def test_a_driver_s_name_leads_to_its_card(key: str) -> None:
    assert card_of_device(CARDS[key].name) == key


@pytest.mark.parametrize(
    ("device_name", "key"),
    [
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA H100 PCIe", "h100"),
        ("Tesla V100-SXM3-32GB", "v100-32"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "4090"),
        ("NVIDIA GeForce GTX 1080", None),
        ("", None),
    ],
)
def test_so_do_its_siblings_names(device_name: str, key: str | None) -> None:
    assert card_of_device(device_name) == key
