"""The page and ``vramlens explain`` say the same."""

from __future__ import annotations

import pytest

from support.page_data import PageData
from support.recordings import data_of, read
from vramlens.api import explain_recording
from vramlens.report.explain.answer_words import headline, sentences
from vramlens.report.explain.json import to_json
from vramlens.report.wording import sentence
from vramlens.view.page import data_of as page_data_of


@pytest.mark.parametrize("name", ["recordings/oom_train", "found/compiled_fx"])
def test_the_page_has_the_verdict_the_findings_and_the_lines_of_explain(name):
    trace = read(data_of(name))
    explanation = explain_recording(trace)
    told = to_json(explanation)
    data = PageData(page_data_of([trace]))
    track = data.header["tracks"][0]
    verdict = track["verdict"]
    assert (verdict["headline"], verdict["sentences"]) == (
        headline(explanation),
        list(sentences(explanation)),
    )
    pairs = list(zip(verdict["findings"], told["findings"], strict=True))
    for shown, printed in pairs:
        for field in ("id", "verdict", "title", "bytes"):
            assert shown[field] == printed[field]
        assert shown["evidence"] == [sentence(text) for text in printed["evidence"]]
    assert pairs
    assert _lines_at_the_peak(data, track) == {
        (line["file"], line["line"], line["function"]): line["bytes"]
        for line in told["peak"]["by_line"]
    }


def _lines_at_the_peak(data, track):
    rows = track["rows"]
    peak = track["counters"]["requested"][2]
    columns = (data.column(rows[name]) for name in ("born", "kept", "pending", "bytes", "line"))
    sums: dict[tuple[str, int, str], int] = {}
    for born, kept, pending, size, line in zip(*columns, strict=True):
        if line and born - 1 <= peak < born - 1 + kept + pending:
            file, number, function = track["lines"][line - 1]
            place = (track["texts"][file], number, track["texts"][function])
            sums[place] = sums.get(place, 0) + size
    return sums
