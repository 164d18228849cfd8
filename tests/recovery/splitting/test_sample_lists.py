"""Which lists of a batch hold one item a sample."""

from __future__ import annotations

import torch

from vramlens.recovery.splitting.sample_lists import sample_lists

IMAGES = [torch.zeros(3, 4) for _ in range(3)]
TARGETS = [{"boxes": torch.zeros(2, 4)} for _ in range(3)]


def test_images_and_targets_of_a_detector() -> None:
    assert sample_lists((IMAGES, TARGETS)) == {id(IMAGES), id(TARGETS)}


def test_dicts_with_other_keys_need_a_list_beside_them() -> None:
    mixed = [{"a": 1}, {"b": 2}]
    assert sample_lists({"targets": mixed}) == frozenset()
    assert sample_lists({"targets": mixed, "x": torch.zeros(2, 1)}) == {id(mixed)}


def test_words_as_long_as_the_tensors() -> None:
    words = ["a", "b", "c"]
    assert sample_lists({"x": torch.zeros(3, 1), "words": words}) == {id(words)}
    assert sample_lists({"x": torch.zeros(4, 1), "words": words}) == frozenset()


def test_words_of_two_lengths_are_not_samples() -> None:
    assert sample_lists({"a": ["x"], "b": ["x", "y"]}) == frozenset()


def test_a_list_of_tensors_alone_is_a_container() -> None:
    assert sample_lists(IMAGES) == frozenset()
