"""A leak in words and as JSON, by hand-made leaks: no recording and no search is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import claim_of, growth_words, place_text
from vramlens.leak.fixes import FIXES, fix_of_class
from vramlens.leak.leak import Leak, LeakOwner, is_too_small
from vramlens.read.parts.storages import _CLASSES
from vramlens.units import MIB

OWNER = LeakOwner("Trainer.history", "list", "train.py", 41, "step", ("global trainer", ".history"))
LEAK = Leak(
    verdict=Verdict.PROVEN,
    kind="graph",
    bytes_per_step=MIB,
    bytes=12 * MIB,
    steps=12,
    storages=36,
    place=Place("train.py", 40, "step"),
    owner=OWNER,
    fix="keep loss.detach()",
    fix_share=0.75,
    evidence=("12 steps left memory behind",),
)


@pytest.mark.parametrize(
    ("size_bytes", "steps", "told"),
    [
        (12 * MIB, 12, "1.00 MiB per step, 12.00 MiB so far in 12 steps"),
        (12 * MIB + 30_000, 12, "1.00 MiB per step, 12.03 MiB so far in 12 steps"),
        (14 * MIB, 12, "about 1.00 MiB per step, 14.00 MiB so far"),
        # Each tenth step of eighty.
        (80 * MIB, 8, "about 10.00 MiB every 10 steps, 80.00 MiB so far"),
    ],
)
def test_the_rate_times_the_steps_is_what_is_printed(
    size_bytes: int, steps: int, told: str
) -> None:
    leak = replace(LEAK, bytes=size_bytes, steps=steps)
    assert growth_words(leak) == told


@pytest.mark.parametrize(
    ("size_bytes", "told"),
    [
        (14 * MIB, "1.00 MiB per step, 14.00 MiB so far in 14 steps"),
        # Not whole steps, and more than there were.
        (14 * MIB + 300_000, "about 1.00 MiB per step, 14.29 MiB so far"),
        (20 * MIB, "about 1.00 MiB per step, 20.00 MiB so far"),
    ],
)
def test_the_bytes_of_a_live_leak_are_of_the_steps_around_those_that_were_judged(
    size_bytes: int, told: str
) -> None:
    leak = replace(LEAK, bytes=size_bytes, first_step=2, last_step=13)
    assert growth_words(leak) == told


def test_the_statement_is_quoted_without_its_comment() -> None:
    owner = replace(OWNER, source="history.append(loss)  # never emptied")
    claim = claim_of(replace(LEAK, owner=owner), unseen="")
    assert "train.py:41 history.append(loss))" in claim.owner


@pytest.mark.parametrize(
    ("storages", "told"),
    [
        (160, "keeps 2 tensors of every step"),
        (75, "keeps 1 tensor of every step"),
        (8, "keeps 1 tensor of about every 10 steps"),
        (0, "keeps 1 tensor of every step"),
    ],
)
def test_a_tensor_now_and_then_is_not_one_of_every_step(storages: int, told: str) -> None:
    leak = replace(LEAK, kind="container", bytes=80 * MIB, steps=8, storages=storages)
    assert claim_of(leak, unseen="").owner.endswith(told)


@pytest.mark.parametrize(
    ("steps", "told"),
    [(50, "keeps 2 tensors of every step"), (12, "keeps 2 tensors per step on average")],
)
def test_tensors_of_some_steps_are_not_those_of_every_step(steps: int, told: str) -> None:
    leak = replace(LEAK, kind="container", bytes=80 * MIB, steps=steps, storages=160)
    watched = replace(leak, first_step=1, last_step=80)
    assert claim_of(watched, unseen="").owner.endswith(told)


def test_all_of_a_claim() -> None:
    claim = claim_of(LEAK, unseen="unseen", end="; soon")
    assert claim.headline == "LEAK proven: 1.00 MiB per step, 12.00 MiB so far in 12 steps; soon"
    assert claim.owner == (
        "Trainer.history, a list (train.py:41), keeps the autograd graph of every step, "
        "each with 3 tensors"
    )
    assert claim.facts == (
        "held by global trainer > .history",
        "allocated at train.py:40 in step",
    )
    assert claim.fix == "keep loss.detach() (saves 768.00 KiB per step, 256.00 KiB remain)"
    assert claim.notes == LEAK.evidence


def test_the_line_is_said_once_where_the_owner_allocates() -> None:
    leak = replace(LEAK, place=Place("train.py", 41, "step"))
    assert claim_of(leak, unseen="").facts == ("held by global trainer > .history",)


@pytest.mark.parametrize(
    ("kind", "is_freed", "words"),
    [
        ("stream", True, "steps behind"),
        ("stream", False, "no other stream or pool"),
        ("external", False, "another process does"),
        (None, False, "unseen"),
    ],
)
def test_who_keeps_what_has_no_owner(kind: str | None, is_freed: bool, words: str) -> None:
    leak = replace(LEAK, kind=kind, owner=None, is_freed=is_freed)
    allocated, keeper = claim_of(leak, unseen="unseen").facts
    assert allocated == "allocated at train.py:40 in step"
    assert words in keeper


def test_a_doubt_stands_last_and_says_what_it_is() -> None:
    doubtful = replace(LEAK, verdict=Verdict.POSSIBLE, reason="few steps", low=1, high=2 * MIB)
    bounds, _, doubt = claim_of(doubtful, unseen="").notes
    assert bounds.startswith("1 byte to 2.00 MiB per step")
    assert doubt == "not certain: few steps"
    assert doubtful.why == ("12 steps left memory behind", "few steps")
    assert doubtful.reason_and("and more") == "few steps; and more"


def test_growth_without_steps_or_bytes() -> None:
    assert growth_words(replace(LEAK, steps=0)) == "12.00 MiB over the recording"
    nodes = replace(LEAK, bytes_per_step=0, nodes=2990)
    assert growth_words(nodes) == (
        "its autograd graph grows by 249 nodes per step, 2,990 nodes so far (host memory, no tensors)"
    )


def test_every_class_has_its_fix() -> None:
    assert set(_CLASSES) <= set(FIXES)
    assert fix_of_class("lru_cache", "encode (lru_cache)").count("encode.cache_clear()") == 1
    assert fix_of_class("unheard of", "kept") == "clear kept when it is no longer used"


def test_at_least() -> None:
    leak = replace(LEAK, frees_more=True)
    assert leak.advice == "keep loss.detach() (saves at least 768.00 KiB per step)"
    assert replace(LEAK, fix=None).advice is None
    assert replace(LEAK, fix_share=0.0).advice == "keep loss.detach()"


def test_what_is_too_small() -> None:
    assert is_too_small(LEAK, 2 * MIB, None)
    assert not is_too_small(LEAK, MIB, None)
    assert not is_too_small(LEAK, 2 * MIB, 1200 * MIB)
    assert not is_too_small(replace(LEAK, bytes_per_step=0), 2 * MIB, None)
    numbers = replace(LEAK, bytes_per_step=0, bytes=184, verdict=Verdict.POSSIBLE)
    assert is_too_small(numbers, 1024, None)
    assert not is_too_small(replace(numbers, bytes=2048), 1024, None)


def test_the_present_folder_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert place_text("/srv/train.py", 41) == "/srv/train.py:41"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "1.00 MiB per step"),
        ({"bytes": 80 * MIB, "steps": 8}, "10.00 MiB every 10 steps"),
        ({"bytes": 80 * MIB, "steps": 8, "first_step": 2}, "1.00 MiB per step"),
        ({"every_steps": 4, "bytes": 12 * MIB, "steps": 3}, "4.00 MiB every 4 steps"),
    ],
)
def test_one_unit_in_all_that_is_said_of_a_leak(changes: dict[str, int], told: str) -> None:
    """What most steps leave nothing of is told for each time, in the headline and in the advice."""
    leak = replace(LEAK, fix_share=1.0, **changes)  # type: ignore[arg-type]
    assert leak.rate_text == told
    assert told in claim_of(leak, unseen="").headline
    assert (leak.advice or "").endswith(f"(saves {told})")
