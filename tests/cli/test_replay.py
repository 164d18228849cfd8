"""``vramlens replay`` and ``vramlens tune``: what they print, and their answers to bad input."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

import pytest

from recordings import DATA
from vramlens.cli import replay, tune
from vramlens.errors import UsageError

VARLEN = str(DATA / "recordings/gpt_varlen.pickle.xz")
OOM = str(DATA / "recordings/oom_train.pickle.xz")
CAPPED = str(DATA / "replay/recorded_h100/fuzz11cap__c1.pickle.xz")


def called(verb: Any, *words: str) -> None:
    parser = ArgumentParser()
    verb.prepare_parser(parser)
    assert verb.run(parser.parse_args(words)) == 0


def test_the_proof_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    called(replay, VARLEN)
    out = capsys.readouterr().out
    assert out.startswith("The replay is exact: all 21,440 allocations")
    assert "vramlens tune " in out


def test_what_if_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    called(replay, VARLEN, "--conf", "expandable_segments:True", "--conf", "max_split_size_mb:64")
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(
        "With expandable_segments:True the run would have reserved 4.13 GiB at its peak: 2.63 GiB less"
    )
    assert "The replay is exact" in out
    assert "ALLOC_CONF=expandable_segments:True" in out


def test_data_has_every_key_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    called(replay, VARLEN, "--conf", "expandable_segments:True", "--cap", "5GiB", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "vramlens/1"
    assert {
        "conf", "cap_bytes", "exact", "segment_events", "segment_events_matched", "addresses", "addresses_matched",
        "first_difference", "peak_allocated_bytes", "peak_reserved_bytes", "retries", "failed_requests",
    } <= set(found["recorded"])  # fmt: skip
    (row,) = found["what_if"]
    assert {
        "conf", "cap_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "low_bytes", "high_bytes", "retries",
        "failed_requests", "oom", "oom_event", "confidence",
    } <= set(row)  # fmt: skip
    assert (row["conf"], row["cap_bytes"]) == ("expandable_segments:True", 5 * 2**30)
    assert (row["peak_reserved_bytes"], row["oom"], row["confidence"]) == (4433379328, False, "exact")


@pytest.mark.parametrize("file", [VARLEN, OOM, CAPPED])
@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_an_answer_fits_a_screen(
    file: str, width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for verb, words in ((replay, ["--conf", "expandable_segments:True"]), (tune, [])):
        called(verb, file, *words)
        assert len(capsys.readouterr().out.splitlines()) <= 24


def test_all_settings_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    called(tune, VARLEN, "--all")
    out = capsys.readouterr().out
    assert "others: --all" not in out
    assert "max_split_size_mb:1024" in out


def test_cards(capsys: pytest.CaptureFixture[str]) -> None:
    called(tune, VARLEN, "--cards", "5GiB,8GiB", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["smallest_card_bytes"] == 5 * 2**30
    assert [card["size_bytes"] for card in found["best"]["cards"]] == [5 * 2**30, 8 * 2**30]


def test_settings_that_pytorch_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="max_split_size_mb too small, must be >= 20"):
        called(replay, VARLEN, "--conf", "max_split_size_mb:3")
    assert not capsys.readouterr().out
