"""The verbs as functions of the package, and how their answers look in a program and a notebook."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import vramlens

DATA = Path(__file__).parent / "data"
LEAK = DATA / "recordings" / "leak_losses.pickle.xz"
GPT = DATA / "recordings" / "gpt.pickle.xz"
OOM = DATA / "captured" / "oom_forward.vram"
TRACE = DATA / "profiler" / "train.json.gz"


@pytest.fixture(scope="module")
def recording():
    return vramlens.load(LEAK)


def shown(answer) -> str:
    """The text in an answer's HTML."""
    page = answer._repr_html_()
    assert "<script" not in page
    return html.unescape(re.sub(r"<[^>]*>", "", page))


ANSWERS = {
    "explain": lambda recording: vramlens.explain(OOM),
    "profile": lambda recording: vramlens.explain(TRACE),
    "tune": lambda recording: vramlens.load(GPT).tune(),
    "replay": lambda recording: vramlens.load(GPT).replay(),
    "leaks": lambda recording: recording.leaks(),
    "diff": lambda recording: vramlens.diff(GPT, recording),
    "ranks": lambda recording: vramlens.ranks(DATA / "ranks" / "ddp"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_prints_itself_on_one_screen(name, recording):
    answer = ANSWERS[name](recording)
    text = str(answer)
    assert text.splitlines()[0].strip()
    assert len(text) < 6000
    assert repr(answer) == text.rstrip("\n")
    assert shown(answer).split() == text.split()


def test_a_recording_says_what_it_holds(recording):
    text = str(recording)
    assert str(LEAK) in text
    assert "requested" in text
    assert shown(recording) == text
    assert repr(recording).startswith("<Recording ")


def test_text_from_a_file_stays_text_in_a_notebook(tmp_path):
    path = tmp_path / "<script>alert(1)</script>.pickle.xz"
    path.parent.mkdir(exist_ok=True)
    name = str(path).replace("/script", "\\script")
    Path(name).write_bytes(GPT.read_bytes())
    assert "<script" not in vramlens.load(name)._repr_html_()
    page = vramlens.view(name, sources=None)
    assert page._repr_html_().count("<script") == page.html.count("<script>") + page.html.count(
        "<script "
    )


def test_check_holds_a_recording_against_a_budget(tmp_path, recording):
    budget = tmp_path / "vram.toml"
    budget.write_text('[budget]\npeak_allocated = "1 MiB"\n')
    check = vramlens.check(recording, budget)
    assert not check.passed
    assert "peak_allocated" in str(check)
    assert vramlens.check(LEAK, budget, baseline=GPT).findings


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no such file"), ("[budget]\n", "has no limit")]
)
def test_check_wants_a_budget(tmp_path, recording, text, message):
    budget = tmp_path / "vram.toml"
    if text is not None:
        budget.write_text(text)
    with pytest.raises(vramlens.InputError, match=message):
        vramlens.check(recording, budget)


def test_view_is_a_page_that_a_notebook_shows(tmp_path, recording):
    page = vramlens.view([GPT, recording], output=tmp_path / "both.html", sources=None)
    assert (tmp_path / "both.html").read_text() == page.html
    assert page.html.startswith("<!doctype html>")
    assert page._repr_html_().startswith('<iframe sandbox="allow-scripts"')
    assert len(repr(page)) < 300
    with pytest.raises(vramlens.UsageError, match="at least one"):
        vramlens.view([])


def test_export_writes_another_tools_file(tmp_path, recording):
    target = tmp_path / "allocations.csv"
    assert vramlens.export(recording, "csv", target) == str(target)
    assert target.read_text().count("\n") > 100
    with pytest.raises(vramlens.UsageError, match="perfetto, chrome"):
        vramlens.export(recording, "word", target)


def test_wrong_types_are_told_in_words():
    with pytest.raises(TypeError, match="budget takes a file's path"):
        vramlens.check(LEAK, 3)
    with pytest.raises(TypeError, match="device takes"):
        vramlens.diff(LEAK, LEAK, device="cuda")
