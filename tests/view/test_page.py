"""The one-file page: whole, loads nothing, and what comes with the input stays text."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import re

import pytest

from support.page_data import PageData, data_in
from support.recordings import block, data_of, dump_slowly, event, read, segment, snapshot
from vramlens.view.page import data_of as page_data_of
from vramlens.view.page import empty_page, one_file, title_of

EVIL = '</script><img src=x onerror="alert(1)"><!-- \u2028\x1b[31m\u202e'


class Elements(html.parser.HTMLParser):
    """Tags with their attributes, and the text of each script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and data.strip():
            self.texts.append((self.tags[-1][0], data))


def page_of(trace):
    return one_file(page_data_of([trace]), title_of([trace]))


def hostile():
    at = 1 << 40
    frames = [{"filename": f"{EVIL}.py", "line": 7, "name": EVIL}]
    long = [{"filename": EVIL * 3000, "line": 1 << 40, "name": "<b>" * 40_000}]
    deep = [{"filename": "deep.py", "line": n, "name": f"<i>{n}"} for n in range(3000)]
    events = [
        event("segment_alloc", at, 2 << 20),
        event("alloc", at, 1 << 20, frames=frames, user_metadata=EVIL),
        event("alloc", at + (1 << 20), 1 << 19, frames=[*long, *deep, *long]),
    ]
    blocks = [
        block(at, 1 << 20, 1 << 20),
        block(at + (1 << 20), 1 << 19, 1 << 19),
        block(at + (3 << 19), 1 << 19, 0, "inactive"),
    ]
    state = snapshot(events, [segment(at, 2 << 20, blocks)])
    state["external_annotations"] = [
        {"stage": stage, "name": EVIL, "device": 0, "time_us": 1} for stage in ("START", "END")
    ]
    return state


def test_the_policy_allows_the_pages_own_script_and_style_alone():
    page = page_of(read(data_of("recordings/gpt")))
    elements = Elements(page)
    (policy,) = [
        a["content"] for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert "unsafe" not in policy
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    # The policy comes before anything that it is about.
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")


def test_nothing_is_named_that_could_be_loaded():
    page = page_of(read(data_of("recordings/gpt")))
    elements = Elements(page)
    for tag, attributes in elements.tags:
        assert tag in {"html", "meta", "title", "style", "body", "noscript", "script", "link"}
        assert not {"src", "style", "onload", "onerror"} & attributes.keys()
        assert (
            attributes.get("href", "data:,") == "data:,"
        )  # no icon, so that no browser asks for one
    # url(#...) is within an SVG that the page saves, and the address is that format's name.
    named = re.search(r"url\((?!#)|@import|(?:https?|wss?)://(?!www\.w3\.org/2000/svg)", page)
    assert named is None


def test_hostile_names_stay_text():
    trace = read(dump_slowly(hostile()))
    object.__setattr__(trace, "source", f"{EVIL}.pickle")
    page = page_of(trace)
    assert "<img" not in page
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    header = PageData(data_in(page)).header
    texts = header["tracks"][0]["texts"]
    assert any("<img src=x" in text for text in texts)  # told, as text
    assert all(text.isprintable() for text in texts)


@pytest.mark.parametrize(
    "name", ["{style}", "{data}", "{script}", "{0}", "{title.__class__}", "</title>"]
)
def test_a_file_may_be_called_anything(name):
    page = one_file(b"data", name)
    assert f"<title>{html.escape(name)}</title>" in page
    assert '<script type="application/octet-stream" id="data">ZGF0YQ==</script>' in page
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page


def test_surrogates_and_long_names_do_no_harm():
    state = hostile()
    state["external_annotations"][0]["name"] = "n" * 100_000
    header = PageData(page_data_of([read(dump_slowly(state))])).header
    assert max(map(len, header["tracks"][0]["texts"])) <= 2001
    verdict = header["tracks"][0]["verdict"]
    told = [
        verdict["headline"],
        *verdict["sentences"],
        *(one["title"] for one in verdict["findings"]),
    ]
    assert any("<b><b>" in text for text in told)
    assert max(map(len, told)) <= 501  # the verdict does not hide behind a name


def test_the_servers_page_asks_only_its_server():
    page = empty_page("x")
    assert 'id="data"></script>' in page
    assert "connect-src 'self'" in page


def test_a_page_of_all_is_small():
    data = page_data_of([read(data_of("recordings/gpt_varlen"))])
    assert len(data) < 12 * PageData(data).header["tracks"][0]["rows"]["n"]


def test_several_recordings_are_one_page():
    traces = [read(data_of(f"recordings/{name}")) for name in ("gpt", "resnet50")]
    header = PageData(page_data_of(traces)).header
    assert len(header["tracks"]) == 2
    assert header["title"] == "test and test"


def test_a_recording_of_nothing_is_a_page_that_says_so():
    page = one_file(page_data_of([read(dump_slowly(snapshot([], [])))]), "nothing")
    assert PageData(data_in(page)).header["tracks"] == []
