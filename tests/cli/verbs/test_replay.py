"""``vramlens replay`` and ``vramlens tune``: what they print, and their answers to bad input."""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser
from typing import Any

import pytest

from support.recordings import DATA
from vramlens.api import example_path
from vramlens.cli.main import main
from vramlens.cli.verbs.reading import replay, tune
from vramlens.errors import InputError, UsageError
from vramlens.replay import WORTH_TRYING

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
        "With expandable_segments:True, the run would have reserved 4.13 GiB at its peak: 2.63 GiB less"
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
    assert (row["peak_reserved_bytes"], row["oom"], row["confidence"]) == (
        4433379328,
        False,
        "exact",
    )


@pytest.mark.parametrize("file", [VARLEN, OOM, CAPPED])
@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_an_answer_fits_a_screen(
    file: str, width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("LINES", "24")
    for verb, words in ((replay, ["--conf", "expandable_segments:True"]), (tune, [])):
        called(verb, file, *words)
        assert len(capsys.readouterr().out.splitlines()) <= 24


def test_all_settings_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("LINES", "24")
    called(tune, VARLEN)
    assert "--all" in capsys.readouterr().out
    called(tune, VARLEN, "--all")
    out = capsys.readouterr().out
    assert "--all" not in out
    assert "max_split_size_mb:1024" in out


def test_cards(capsys: pytest.CaptureFixture[str]) -> None:
    called(tune, VARLEN, "--cards", "5GiB,8GiB", "--json")
    found = json.loads(capsys.readouterr().out)
    on_5_gib, on_8_gib = found["best"]["cards"]
    assert (on_5_gib["fits"], on_8_gib["fits"]) == (None, True)  # 0.8 GiB beside the allocator
    assert found["best"]["smallest_card_bytes"] == 8 * 2**30
    assert [card["size_bytes"] for card in found["best"]["cards"]] == [5 * 2**30, 8 * 2**30]


def test_settings_that_pytorch_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="max_split_size_mb too small, must be >= 20"):
        called(replay, VARLEN, "--conf", "max_split_size_mb:3")
    assert not capsys.readouterr().out


def test_a_setting_is_never_cut_and_is_quoted_for_the_shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    called(tune, VARLEN, "--all")
    out = capsys.readouterr().out
    whole_names = re.sub(r",\n +", ",", out)  # a name goes on below its first part
    assert all(
        any(line.endswith(f"  {conf}") for line in whole_names.splitlines())
        for conf in WORTH_TRYING
        if conf and "garbage" not in conf and "segment_size" not in conf
    )
    conf = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:True"
    called(replay, VARLEN, "--conf", conf)
    assert capsys.readouterr().out.splitlines()[-1] == f"  export PYTORCH_CUDA_ALLOC_CONF='{conf}'"


def test_a_card_smaller_than_what_was_there_is_named() -> None:
    late = str(DATA / "replayed/late7__default.vram")
    with pytest.raises(
        InputError, match=r"a card of 100.00 MiB is too small.*leave it out of --cards"
    ):
        called(tune, late, "--cards", "100MiB,2GiB")


FRAGMENTED = str(DATA / "recordings/oom_fragmented.pickle.xz")


def test_explain_and_tune_do_not_send_people_to_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", FRAGMENTED]) == 0
    out = " ".join(capsys.readouterr().out.split("Next, ")[1].split())
    assert "vramlens tune" not in out  # replayed already: nothing helps
    assert "allocate the 600.00 MiB first, or raise the limit to 2.50 GiB" in out
    called(tune, FRAGMENTED)
    out = capsys.readouterr().out
    assert out.startswith(
        "No setting helps under the limit of the recorded run: the run fails with all"
    )
    assert out.splitlines()[-2:] == [
        "Next, allow at least 2.50 GiB (for this request), or see what could be smaller:",
        f"  vramlens view {FRAGMENTED}",
    ]


def test_what_gets_past_a_failure_is_not_promised(capsys: pytest.CaptureFixture[str]) -> None:
    """``explain`` says of this run that expandable segments only delay the failure."""
    example = str(example_path())
    called(tune, example)
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("expandable_segments:True gets past this request only; the step still")
    called(replay, example, "--conf", "expandable_segments:True")
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("expandable_segments:True gets past this request only")
    assert "(`vramlens explain` says why)." in out
    assert " fails later conditional" in out
    assert "fails later: the failed request fits, and a later one of the step does not" in out
    assert "Next, see what the rest of the step needs: vramlens explain " in out
    assert "export" not in out


def test_replay_says_what_explain_and_tune_say_of_the_failed_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(DATA / "failures/gpt.cap97.vram")
    for verb, words in ((replay, ["--conf", "expandable_segments:True"]), (tune, [])):
        called(verb, file, *words)
        out = " ".join(capsys.readouterr().out.split())
        finishes = "the step that failed finishes under a limit of 1.99 GiB, with 1.88 GiB reserved"
        assert finishes in out
        assert "step finishes: the failed step, continued like an earlier one, fits" in out
        assert "Next, use this setting to avoid the failure: export" in out
    called(replay, file, "--conf", "max_split_size_mb:64")
    out = " ".join(capsys.readouterr().out.split())
    assert "What would have come next is not recorded." in out
    assert "Next, try this setting: whether the rest of the step fits is not known:" in out


@pytest.mark.parametrize(
    ("file", "cap", "given"),
    [
        ("recordings/oom_fragmented.pickle.xz", "3GiB", "3.00 GiB"),
        ("captured/oom_forward.vram", "24GiB", "24.00 GiB"),
    ],
)
def test_a_limit_that_no_setting_fails_under(
    file: str, cap: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    called(tune, str(DATA / file), "--cap", cap)
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(
        f"With {given}, the run gets past the failure with any setting. What comes later is not recorded."
    )
    assert "vramlens explain" not in out


@pytest.mark.parametrize(
    ("verb", "option"), [("tune", "--cap"), ("tune", "--cards"), ("replay", "--cap")]
)
def test_a_limit_without_its_unit_is_refused(
    verb: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, VARLEN, option, "80"]) == 2
    assert "80 is 80 bytes; did you mean 80GiB?" in capsys.readouterr().err


def test_cards_are_answered_first_and_fit_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    file = str(DATA / "recordings/gpt.pickle.xz")
    called(tune, file, "--cards", "16GiB,24GiB")
    answer = "Fits a 16 GiB card and larger ones with the recorded settings.\n"
    assert capsys.readouterr().out.startswith(answer)
    called(tune, file, "--cards", "1GiB,2GiB,16GiB,24GiB,40GiB,80GiB")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "Fits a 16 GiB card and larger ones with the recorded settings. 1 GiB is too"
    )
    assert max(map(len, lines)) <= 80
    called(tune, file, "--cards", "1GiB")
    assert capsys.readouterr().out.startswith("1 GiB is too small with all ")


def test_a_card_may_be_named_and_its_json_says_what_the_text_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """2 GiB hold the allocator's 1.88 GiB, and not what a process takes beside them."""
    file = str(DATA / "recordings/gpt.pickle.xz")
    called(tune, file, "--cards", "2GiB,T4,h100", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["outside_bytes"] is None
    small, t4, h100 = answer["best"]["cards"]
    assert (small["fits"], t4["fits"], h100["fits"]) == (None, True, True)
    assert (t4["size_bytes"], h100["size_bytes"]) == (15828320256, 85014020096)
    assert answer["best"]["smallest_card_bytes"] == t4["size_bytes"]
    assert main(["tune", file, "--cards", "H1000"]) == 2
    message = capsys.readouterr().err
    assert "'H1000' is not a card: write a size such as 80G, or one of h200, h100" in message
