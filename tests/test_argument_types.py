"""A wrong type is told in words, in one line, by whichever public function it was given to."""

from __future__ import annotations

import contextlib
import math
import re

import pytest

import vramlens
from support.recordings import DATA

GPT = DATA / "recordings" / "gpt.pickle.xz"
WRONG = (5, 2.5, b"x", [5], {}, object(), True, math.nan, "bananas", -1, None)
ARGUMENTS = {
    "load": ("path", "progress"),
    "explain": ("path", "at", "device", "log", "total_bytes", "progress"),
    "peak": ("device",),
    "replay": ("conf", "cap", "device", "recorded_cap"),
    "tune": ("cap", "cards", "conf", "device", "recorded_cap"),
}
OPEN = {("load", "path"), ("explain", "path")}


@pytest.fixture(scope="module")
def recording() -> vramlens.Recording:
    return vramlens.load(DATA / "recordings" / "streams.pickle.xz")


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, argument) for name, arguments in ARGUMENTS.items() for argument in arguments],
)
def test_a_wrong_type_is_told_in_words(
    name: str, argument: str, recording: vramlens.Recording
) -> None:
    function = getattr(vramlens, name) if name in ("load", "explain") else getattr(recording, name)
    told = []
    for value in WRONG:
        given = (
            {argument: value} if (name, argument) in OPEN else {argument: value, **_required(name)}
        )
        with contextlib.suppress(vramlens.VramlensError):
            try:
                function(**given)
            except TypeError as error:
                told.append(str(error))
    assert told
    assert [text for text in told if not re.fullmatch(rf"{argument} takes .+, not .+", text)] == []


def _required(name: str) -> dict[str, object]:
    return {"path": GPT} if name in ("load", "explain") else {}


def test_a_size_may_be_text() -> None:
    explanation = vramlens.explain(GPT, total_bytes="80GiB")
    assert explanation.ledger == vramlens.explain(GPT, total_bytes=80 * 2**30).ledger
    assert vramlens.explain(GPT, at=100).at == "100"


def test_the_error_of_no_leaks_is_exported() -> None:
    assert issubclass(vramlens.LeakError, (vramlens.VramlensError, AssertionError))
