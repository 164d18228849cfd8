"""Tuning: the best setting, cards, and that it says when nothing helps."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from support.documents import print_answer
from support.recordings import DATA, data_of, read, truth_of
from vramlens import UsageError, load
from vramlens.replay import WORTH_TRYING, Tuning, parse_settings, tune_trace
from vramlens.report.replay.card_words import cards_headline
from vramlens.report.replay.tuning_story import _fit
from vramlens.trace import DecisionsMeta, Meta, Trace
from vramlens.units import GIB, MIB

CONF = "max_split_size_mb:128"


def test_the_best_setting_of_a_fragmenting_run() -> None:
    tuning = tune_trace(read(data_of("recordings/gpt_varlen")))
    assert tuning.best is not None
    assert tuning.best.row.settings.conf == "expandable_segments:True"
    assert tuning.best.row.peak_reserved_bytes == 4228 * MIB
    assert tuning.best.saved_bytes == (6922 - 4228) * MIB
    worst = tuning.tried[-1]
    assert worst.saved_bytes < -10_000 * MIB  # popular advice
    assert all("garbage_collection" in conf for conf in tuning.inert)


def test_it_says_when_nothing_helps() -> None:
    truth = truth_of("recordings/oom_fragmented")
    tuning = tune_trace(
        read(data_of("recordings/oom_fragmented")),
        recorded_cap_bytes=truth["oom"]["device_allocated"],
    )
    assert tuning.best is None
    assert all(one.row.oom for one in tuning.tried)


def test_the_smallest_card() -> None:
    tuning = tune_trace(read(data_of("recordings/gpt_varlen")), cards=[3 * GIB, 8 * GIB, 5 * GIB])
    expandable = next(
        one for one in tuning.tried if one.row.settings.conf == "expandable_segments:True"
    )
    assert [card.size_bytes for card in expandable.cards] == [3 * GIB, 5 * GIB, 8 * GIB]
    # What the process takes beside the allocator is unknown: 5 GiB leave less than 1 GiB for it.
    assert [card.fits for card in expandable.cards] == [False, None, True]
    assert [card.row.oom for card in expandable.cards] == [True, False, False]
    assert expandable.smallest_card == 8 * GIB


def test_a_cache_that_fills_a_card_leaves_room_outside_pytorch_when_it_must() -> None:
    """The run reserves 6.76 GiB with the recorded settings, mostly cached: it lives within 6 GiB."""
    tuning = tune_trace(read(data_of("recordings/gpt_varlen")), cards=[7 * GIB], confs=())
    (card,) = tuning.tried[0].cards
    assert card.fits
    assert card.row.cap_bytes == 6 * GIB
    assert card.row.retries > 0
    console = Console(file=io.StringIO(), width=120)
    print_answer(tuning, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("Fits a 7 GiB card with the recorded settings (1 retry).\n")


LEAST_MEMORY = "expandable_segments:True,roundup_power2_divisions:8"
LEAST_CARD = "expandable_segments:True,max_split_size_mb:128"


def text_of(tuning: Tuning, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_answer(tuning, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_setting_that_the_card_needs_is_the_one_to_use() -> None:
    """Another reserves less on a card of any size, and not surely within this one."""
    recording = read(data_of("recordings/gpt_varlen"))
    confs = (LEAST_MEMORY, LEAST_CARD)
    small = tune_trace(recording, cards=[5324 * MIB], confs=confs)
    for tuning, conf in (
        (tune_trace(recording, cards=[24 * GIB], confs=confs), LEAST_MEMORY),
        (small, LEAST_CARD),
    ):
        assert tuning.best is not None
        assert tuning.best.row.settings.conf == conf
        assert tuning.tried[0] is tuning.best
    text = text_of(small)
    assert " ".join(text.split()).startswith(
        f"Fits a 5.20 GiB card with {LEAST_CARD} (5 retries); with the recorded settings it may not"
    )
    assert "Use " not in text
    assert (
        f"Next, use this setting to fit a 5.20 GiB card:\n  export PYTORCH_CUDA_ALLOC_CONF={LEAST_CARD}"
        in text
    )


@pytest.mark.parametrize("gib", [(5.2,), (5.2, 5.3), (1, 24), (7,), (5.2, 7, 24, 40, 80)])
def test_a_legend_stands_only_below_a_table_that_shows_its_word(gib: tuple[float, ...]) -> None:
    cards = [int(size * GIB) for size in gib]
    confs = (LEAST_MEMORY, LEAST_CARD)
    tuning = tune_trace(read(data_of("recordings/gpt_varlen")), cards=cards, confs=confs)
    for width in (60, 80, 120):
        lines = text_of(tuning, width).splitlines()
        blank = lines.index("")
        table = "\n".join(lines[blank : lines.index("", blank + 1)])
        for word, mark in (("maybe", "maybe: "), ("retry", "retry: ")):
            rows = table.replace(mark, "").replace("each retry costs", "").replace("ries", "ry")
            assert (word in rows) == (mark in table), (gib, width)


@pytest.mark.parametrize(
    ("gib", "told"),
    [
        ((5.2,), "it may not fit."),
        (
            (4.2, 5.2),
            "it may fit none of them. 4.20 GiB may be enough: less than 1 GiB is left for",
        ),
        ((5.2, 24), "it needs a 24 GiB card."),
    ],
)
def test_what_the_recorded_settings_do_instead(gib: tuple[float, ...], told: str) -> None:
    cards = [int(size * GIB) for size in gib]
    recording = read(data_of("recordings/gpt_varlen"))
    assert told in cards_headline(tune_trace(recording, cards=cards, confs=(LEAST_CARD,)))


@pytest.mark.parametrize(
    ("size_gib", "words"), [(8, "an 8 GiB"), (11, "an 11 GiB"), (12, "a 12 GiB"), (80, "an 80 GiB")]
)
def test_a_card_has_the_article_that_its_size_is_spoken_with(size_gib: int, words: str) -> None:
    recording = read(data_of("recordings/gpt"))
    tuning = tune_trace(recording, cards=[size_gib * GIB], confs=())
    assert cards_headline(tuning) == f"Fits {words} card with the recorded settings."


def test_every_setting_worth_trying_is_one_that_pytorch_reads() -> None:
    assert len({parse_settings(conf) for conf in WORTH_TRYING}) == len(WORTH_TRYING) >= 24


def test_it_is_quick() -> None:
    trace = read(data_of("recordings/gpt_varlen"))
    start = time.process_time()
    tune_trace(trace, cap_bytes=6 * GIB)
    assert (
        time.process_time() - start < 10
    )  # under 2 s on two free cores: benchmarks/replay.py measures it


def test_a_request_above_the_limit_is_one_line() -> None:
    recording = load(DATA / "captured/oom_really_full.vram")
    console = Console(file=io.StringIO(), width=80)
    print_answer(recording.tune(cap="24GiB"), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("No setting helps: a single request for 77.49 GiB exceeds 24.00 GiB.\n")
    assert "0 bytes" not in text


def test_a_limit_without_its_unit_is_refused() -> None:
    recording = load(DATA / "captured/oom_really_full.vram")
    for ask in (recording.tune, recording.replay):
        with pytest.raises(UsageError, match=r"24 bytes; did you mean 24GiB\?"):
            ask(cap="24")
    with pytest.raises(UsageError, match=r"did you mean 24GiB\?"):
        recording.tune(cards=["24"])


def test_what_is_the_same_in_all_rows_makes_room_for_their_settings() -> None:
    """Said once below the table, with its value; the widest setting then stands beside its
    figures.
    """
    tuning = tune_trace(read(data_of("recordings/oom_fragmented")))

    def lines(width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width)
        print_answer(tuning, console)
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    narrow, wide = lines(80), lines(200)
    assert "  in every row: change none, retries 1, failed 1, outcome out of memory" in narrow
    assert any(
        line.endswith("bounded  garbage_collection_threshold:0.8,max_split_size_mb:128")
        for line in narrow
    )
    table = narrow[narrow.index("  peak reserved  basis    setting") + 1 :]
    assert all("  1.91 GiB  " in line for line in table[:9])
    assert not any("in each of these" in line for line in wide)
    assert sum("1  out of memory" in line for line in wide) == 9


def test_a_card_needs_room_outside_pytorch() -> None:
    """The run reserves 1.88 GiB at best; what it takes outside PyTorch is not in the recording."""

    def text(*cards: int) -> str:
        tuning = tune_trace(
            read(data_of("recordings/gpt")), cards=cards, confs=("expandable_segments:True",)
        )
        console = Console(file=io.StringIO(), width=120)
        print_answer(tuning, console)
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    assert text(2 * GIB, 4 * GIB).startswith(
        "Fits a 4 GiB card with the recorded settings. 2 GiB may be enough: less than 1 GiB is left"
    )
    assert text(2 * GIB).startswith("May fit a 2 GiB card with expandable_segments:True: ")


def test_what_is_reserved_above_a_limit_is_explained() -> None:
    conf = "expandable_segments:True,roundup_power2_divisions:8"
    tuning = tune_trace(read(data_of("recordings/gpt_varlen")), cap_bytes=GIB, confs=(conf,))
    console = Console(file=io.StringIO(), width=120)
    print_answer(tuning, console)
    assert max(one.row.high_bytes for one in tuning.tried) == GIB + 6 * MIB
    assert "Reserved can exceed the limit" in console.file.getvalue()  # type: ignore[attr-defined]


def predicted_trace(sure_bytes: int | None, *, is_open: bool = False) -> Trace:
    """A recorded run, as if it were a prediction in which made-up numbers decide."""
    trace = read(data_of("recordings/gpt_varlen"))
    decisions = DecisionsMeta((("/a/train.py", 7), ("/a/train.py", 9)), sure_bytes, is_open)
    return replace(trace, meta=Meta(command=("vramlens", "predict"), decisions=decisions))


def test_what_made_up_numbers_decide_is_no_flat_no() -> None:
    tuning = tune_trace(predicted_trace(GIB), cards=[2 * GIB, 24 * GIB, 80 * GIB], confs=[CONF])
    assert [card.fits for card in tuning.as_recorded.cards] == [None, True, True]
    words = " ".join(text_of(tuning).split())
    assert words.startswith(
        "Fits a 24 GiB card and larger ones with the settings as they are. 2 GiB may be enough:"
        " made-up numbers decide; a run may need only 1.00 GiB."
    )
    assert "Made-up numbers decide /a/train.py:7, /a/train.py:9: if a run does the least" in words
    assert [_fit(card) for card in tuning.as_recorded.cards] == ["maybe", "yes", "yes"]
    assert "recorded settings" not in words
    assert "If made-up numbers decide as predicted, any allocator must reserve at least" in words


def test_where_only_made_up_numbers_end_a_loop_no_card_is_a_yes() -> None:
    tuning = tune_trace(predicted_trace(GIB, is_open=True), cards=[24 * GIB], confs=[CONF])
    assert [card.fits for card in tuning.as_recorded.cards] == [None]
    words = " ".join(text_of(tuning).split())
    assert words.startswith(
        "24 GiB may be enough: only a made-up number ends a loop, which may take more iterations."
    )


@pytest.mark.parametrize("sure_bytes", [None, 3 * GIB])
def test_a_card_too_small_for_what_is_sure_is_a_no(sure_bytes: int | None) -> None:
    tuning = tune_trace(predicted_trace(sure_bytes), cards=[2 * GIB, 24 * GIB], confs=[CONF])
    assert [card.fits for card in tuning.as_recorded.cards] == [False, True]
    assert "2 GiB is too small with all 2 settings that were tried." in " ".join(
        text_of(tuning).split()
    )


def test_a_prediction_keeps_its_settings_as_they_are() -> None:
    text = text_of(tune_trace(predicted_trace(None), confs=[""]))
    assert text.startswith("Keep the settings as they are: they reserve")


def test_a_peak_above_the_card_that_it_fits_is_that_of_any_size() -> None:
    tuning = tune_trace(read(data_of("recordings/gpt_varlen")), cards=[6 * GIB], confs=())
    text = text_of(tuning)
    shown = any(card.fits is not False for card in tuning.tried[0].cards)
    assert shown == ("unlimited peak: what is reserved where there is room." in text)
    roomy = text_of(tune_trace(read(data_of("recordings/gpt_varlen")), cards=[80 * GIB], confs=()))
    assert "unlimited peak" not in roomy
    assert "peak reserved" in roomy
