"""Which other ranks a log says ran out of memory, and that nothing is said of what it does not
print.
"""

from __future__ import annotations

import pytest

from vramlens.analyses.recording_explanation import explain_text
from vramlens.read.oom.oom_text import find_oom_messages
from vramlens.report.explain.answer_words import sentences
from vramlens.report.explain.json import to_json


def error(size: str, gpu: int | None = None) -> str:
    where = (
        f" GPU {gpu} has a total capacity of 79.10 GiB of which 18.00 MiB is free."
        if gpu is not None
        else ""
    )
    return f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}.{where}"


def said(*lines: str) -> str:
    messages = find_oom_messages("\n".join(lines).encode())
    found = explain_text(messages[-1], "train.log", len(messages), messages)
    others = found.oom.others if found.oom is not None else ""
    assert not others or f"{others}." in sentences(found)
    return others


EIGHT = [f"[rank{rank}]: {error(f'{50 + rank}.00 MiB', rank)}" for rank in range(8)]


def test_all_other_ranks_are_named_with_their_sizes() -> None:
    assert said(*EIGHT) == "Also failed: GPU 0 to 6 (ranks 0 to 6), 50.00 to 56.00 MiB each"
    assert said(*EIGHT[:2]) == "Also failed: GPU 0 (rank 0), 50.00 MiB"
    assert said(EIGHT[0], EIGHT[1], EIGHT[4], EIGHT[7]) == (
        "Also failed: GPU 0, 1 and 4 (ranks 0, 1 and 4), 50.00 to 54.00 MiB each"
    )
    assert said(error("900.00 KiB", 0), error("2.00 GiB", 2), error("1.00 MiB", 1)) == (
        "Also failed: GPU 0 and 2, 900.00 KiB to 2.00 GiB each"
    )


def test_many_ranks_of_several_machines_stay_one_line() -> None:
    lines = [f"[rank{rank}]: {error('2.00 GiB', rank % 8)}" for rank in range(0, 64, 3)]
    assert (
        said(*lines)
        == "Also failed: GPU 0 to 7 (ranks 0, 3, 6, 9, 12, 15 and more, 21 in all), 2.00 GiB each"
    )


@pytest.mark.parametrize(
    "lines",
    [
        [error("2.00 GiB", 0)],
        [error("1.00 GiB", 0), error("2.00 GiB", 0)],  # one process that failed twice
        [error("1.00 GiB"), error("2.00 GiB")],  # nobody is named
        ["Cuda failure 'out of memory'", error("2.00 GiB", 0)],
        [f"[rank3]: {error('1.00 GiB')}", f"[rank3]: {error('2.00 GiB')}"],
    ],
)
def test_one_rank_is_no_others(lines: list[str]) -> None:
    assert said(*lines) == ""


def test_who_failed_first_is_said_only_where_the_times_tell() -> None:
    def timed(times: list[str]) -> str:
        return said(*(f"{time} {line}" for time, line in zip(times, EIGHT, strict=False)))

    first = "; the first according to the log: rank 1, at 2026-01-02 10:00:03,250"
    assert timed(
        ["2026-01-02 10:00:04,000", "2026-01-02 10:00:03,250", "2026-01-02 10:00:05,000"]
    ).endswith(first)
    for times in (
        ["2026-01-02 10:00:03", "2026-01-02 10:00:03"],  # the same second
        ["2026-01-02 10:00:03", "2026-01-02 10:00:02,999"],  # two forms
        ["2026-01-02 10:00:03", ""],
    ):
        assert "first" not in timed(times)
    again = [
        f"2026-01-02 10:00:0{second} {EIGHT[rank]}"
        for second, rank in ((1, 0), (2, 1), (3, 0), (4, 2))
    ]
    assert "first" not in said(*again)


def test_the_traceback_s_line_is_in_the_data_and_in_the_first_sentences() -> None:
    text = f'Traceback (most recent call last):\n  File "a/train.py", line 88, in main\n    x()\n{error("2.00 GiB", 0)}\n'
    messages = find_oom_messages(text.encode())
    found = explain_text(messages[0], "train.log")
    oom = to_json(found)["oom"]
    assert (oom["file"], oom["line"], oom["function"]) == ("a/train.py", 88, "main")
    assert "Requested at a/train.py:88 in main." in sentences(found)[:2]
    bare = explain_text(find_oom_messages(error("2.00 GiB", 0).encode())[0], "train.log")
    assert {to_json(bare)["oom"][name] for name in ("file", "line", "function")} == {None}
    assert "Asked for" not in " ".join(sentences(bare))
