"""Every verb in every form on files whose every text is hostile: nothing steers, forges a line,
or becomes markup.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from support.hostile_files import (
    EVIL,
    EVIL_LINE,
    MANGLES,
    MARK,
    Mangle,
    hostile_budget,
    hostile_error,
    hostile_flight,
    hostile_log,
    hostile_recording,
    hostile_snapshot,
    hostile_trace,
)
from vramlens.cli.main import main
from vramlens.foreign_text import (
    html_text,
    markdown,
    markdown_block,
    markdown_code,
    visible,
    workflow_command,
)

OUR_TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "ul",
    "ol",
    "li",
    "code",
    "pre",
    "table",
    "tr",
    "td",
    "th",
    "svg",
    "text",
    "rect",
    "span",
    "br",
    "link",
    "noscript",
    "script",
}
LOG_COMMAND = re.compile(r"^[ \t]*::[a-z-]+[ :]|##\[|##vso\[", re.MULTILINE)


@pytest.fixture(params=list(MANGLES))
def mangle(request: pytest.FixtureRequest) -> Mangle:
    return MANGLES[request.param]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "97")
    return tmp_path


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, after a look at all of it."""

    def run(*words: object, codes: tuple[int, ...] = (0,), commands: bool = False) -> str:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert code in codes, err
        assert_steers_nothing(err)
        assert_steers_nothing(out, commands=commands)
        return out

    return run


def assert_steers_nothing(text: str, *, commands: bool = False) -> None:
    odd = {char for char in text if not char.isprintable() and char not in "\n\t"}
    assert not odd
    if not commands:
        match = LOG_COMMAND.search(text)
        assert match is None, text[max(0, match.start() - 80) : match.end() + 80]


class Tags(HTMLParser):
    """Gathers what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def assert_only_our_markup(page: str) -> None:
    assert_steers_nothing(page)
    reader = Tags()
    reader.feed(page)
    assert reader.tags <= OUR_TAGS
    assert not {name for name in reader.attributes if name.startswith("on") or name == "src"}


def assert_only_our_markdown(text: str) -> None:
    """As GitHub reads it, HTML included."""
    assert_steers_nothing(text)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    assert not [
        token
        for token in tokens
        if token.type in ("html_block", "heading_open") and MARK in token.content
    ]
    for at, token in enumerate(tokens):
        assert token.type != "html_block", token.content
        assert token.type != "heading_open" or not tokens[at + 1].content.startswith(MARK)
        for part in token.children or ():
            assert part.type not in ("html_inline", "image", "link_open"), part.content


@pytest.fixture
def recording(folder: Path, mangle: Mangle) -> Path:
    return hostile_recording("captured/oom_forward.vram", folder / f"a{MARK}.vram", mangle)


@pytest.fixture
def steps(folder: Path, mangle: Mangle) -> Path:
    return hostile_recording("captured/steps.vram", folder / f"b{MARK}.vram", mangle)


def test_explain(recording: Path, steps: Path, printed: Callable[..., str]) -> None:
    for path in (recording, steps):
        assert len(printed("explain", path)) > 100
        json.loads(printed("explain", path, "--json"))
        assert_only_our_markdown(printed("explain", path, "--markdown"))
    for by in ("module", "stack", "category"):
        printed("explain", recording, "--by", by)
        assert_only_our_markdown(printed("explain", recording, "--markdown", "--by", by))


def test_explain_a_snapshot_with_regions(
    folder: Path, mangle: Mangle, printed: Callable[..., str]
) -> None:
    path = hostile_snapshot("recordings/leak_outputs.pickle.xz", folder / "snapshot.pickle", mangle)
    for by in ("line", "region", "stack"):
        printed("explain", path, "--by", by)
        assert_only_our_markdown(printed("explain", path, "--markdown", "--by", by))


def test_leaks_replay_and_tune(folder: Path, mangle: Mangle, printed: Callable[..., str]) -> None:
    path = hostile_snapshot("recordings/leak_outputs.pickle.xz", folder / "snapshot.pickle", mangle)
    printed("leaks", path)
    json.loads(printed("leaks", path, "--json"))
    assert_only_our_markdown(printed("leaks", path, "--markdown"))
    printed("replay", path, "--conf", "expandable_segments:True")
    json.loads(printed("replay", path, "--conf", "expandable_segments:True", "--json"))
    printed("tune", path, "--cap", "24GiB")
    json.loads(printed("tune", path, "--cap", "24GiB", "--json"))


def test_diff(recording: Path, steps: Path, printed: Callable[..., str]) -> None:
    for pair in ((recording, steps), (steps, recording)):
        printed("diff", *pair)
        json.loads(printed("diff", *pair, "--json"))
        assert_only_our_markdown(printed("diff", *pair, "--markdown"))
        assert_only_our_markup(printed("diff", *pair, "--html"))


def test_check(
    recording: Path, folder: Path, printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = hostile_budget(folder / "vram.toml")
    summary = folder / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    printed("check", recording, codes=(1,))
    json.loads(printed("check", recording, "--json", codes=(1,)))
    assert_only_our_markdown(printed("check", recording, "--format", "markdown", codes=(1,)))
    made = printed("check", recording, "--format", "github", codes=(1,), commands=True)
    assert all(line.startswith("::error ") for line in made.splitlines())
    assert len(made.splitlines()) == len(re.findall(r"title=vramlens", made))
    assert "##[" not in made
    assert_only_our_markdown(summary.read_text())
    printed("check", recording, "--update", codes=(0, 3))
    budget.unlink()
    printed("check", recording, "--update", codes=(0, 3))


@pytest.mark.parametrize("name", ["names", "no_table", "syntax", "recorded", "value"])
def test_budgets_that_are_refused(
    recording: Path, folder: Path, printed: Callable[..., str], name: str
) -> None:
    texts = {
        "names": f"[budget]\n{json.dumps(EVIL)} = 3\n",
        "no_table": f"[{json.dumps(EVIL)}]\nx = 3\n",
        "syntax": f"[budget]\n{EVIL_LINE}",
        "recorded": f"[budget]\nout_of_memory = 0\n[recorded.{json.dumps(EVIL)}]\n",
        "value": f"[budget]\npeak_allocated = {json.dumps(EVIL)}\n",
    }
    (folder / "vram.toml").write_text(texts[name])
    for form in ("text", "github"):
        printed("check", recording, "--format", form, codes=(3,))


def test_a_log(folder: Path, printed: Callable[..., str]) -> None:
    path = hostile_log(folder / f"{MARK}.log")
    printed("explain", path)
    json.loads(printed("explain", path, "--json"))
    assert_only_our_markdown(printed("explain", path, "--markdown"))


def test_a_profiler_trace(folder: Path, mangle: Mangle, printed: Callable[..., str]) -> None:
    path = hostile_trace("profiler/train.json.gz", folder / f"{MARK}.json", mangle)
    printed("explain", path)
    json.loads(printed("explain", path, "--json"))
    assert_only_our_markdown(printed("explain", path, "--markdown"))


@pytest.mark.parametrize("job", ["ddp", "desync"])
def test_flight_records(
    folder: Path, mangle: Mangle, printed: Callable[..., str], job: str
) -> None:
    paths = [
        hostile_flight(
            f"ranks/{job}/{job}.rank{rank}.nccl.pickle.xz",
            folder / f"nccl_rank{rank}.pickle",
            mangle,
        )
        for rank in (0, 1)
    ]
    printed("explain", paths[0])
    printed("explain", *paths)
    json.loads(printed("explain", *paths, "--json"))
    printed("ranks", *paths)


@pytest.fixture
def job(folder: Path, mangle: Mangle) -> Path:
    """The recordings, flight records and error files of two ranks."""
    made = folder / "job"
    made.mkdir()
    for rank in (0, 1):
        hostile_recording(
            "captured/ddp-rank0.vram", made / f"rank{rank}.vram", mangle, rank=rank, world_size=2
        )
        flight = f"ranks/desync/desync.rank{rank}.nccl.pickle.xz"
        hostile_flight(flight, made / f"nccl_rank{rank}.pickle", mangle)
        hostile_error(made / f"error-rank{rank}.json", mangle)
    return made


def test_ranks_and_lakes(job: Path, folder: Path, printed: Callable[..., str]) -> None:
    pytest.importorskip("duckdb")
    lake = folder / "lake"
    for source in (job, lake):
        printed("ranks", source)
        json.loads(printed("ranks", source, "--json", "--html", folder / "page.html"))
        assert_only_our_markup((folder / "page.html").read_text())
        if source == job:
            printed("export", job, "--to", f"{lake}/")
    for table in ("ranks", "lines", "steps", "events", "stacks", "collectives", "errors"):
        if not list(lake.glob(f"run=*/{table}")):
            continue
        rows = printed("ranks", lake, "--sql", f"SELECT * FROM {table} LIMIT 50")
        assert len({line.count("\t") for line in rows.splitlines()}) == 1
        json.loads(printed("ranks", lake, "--sql", f"SELECT * FROM {table} LIMIT 5", "--json"))
    wrong = f"SELECT '{EVIL.replace(chr(39), chr(39) * 2)}' AS {json.dumps('a' + EVIL.replace(chr(34), ''))}"
    printed("ranks", lake, "--sql", wrong, codes=(0, 2, 3))
    printed("ranks", lake, "--sql", f"SELECT nothing{EVIL}", codes=(2, 3))


def test_view(recording: Path, job: Path, folder: Path, printed: Callable[..., str]) -> None:
    page = folder / "page.html"
    for sources in ([recording], [job]):
        printed("view", *sources, "-o", page)
        text = page.read_text()
        assert_only_our_markup(text)
        assert text.count("<script") == text.count("</script>") == 2


def test_exports(recording: Path, folder: Path, printed: Callable[..., str]) -> None:
    for form in ("chrome", "speedscope"):
        printed("export", recording, "--to", form, "-o", folder / "made")
        text = (folder / "made").read_text()
        assert_steers_nothing(text)
        json.loads(text)
    for form in ("flamegraph", "csv"):
        printed("export", recording, "--to", form, "-o", folder / "made")
        assert_steers_nothing((folder / "made").read_bytes().decode().replace("\r\n", "\n"))
    printed("export", recording, "--to", "csv", "-o", folder / "made")
    assert len({len(row) for row in csv.reader(io.StringIO((folder / "made").read_text()))}) == 1
    for form in ("perfetto", "parquet"):
        printed("export", recording, "--to", form, "-o", folder / "made")


def test_files_with_hostile_names(folder: Path, printed: Callable[..., str]) -> None:
    name = EVIL.replace("/", "").replace("\x00", "")[:60] + f"\n::error::{MARK}\n.vram"
    path = hostile_recording("captured/oom_forward.vram", folder / name, MANGLES["around"])
    missing = folder / f"\n::error::{MARK}\x1b[2J"
    for verb in ("explain", "leaks", "replay"):
        printed(verb, path)
        printed(verb, missing, codes=(3,))
    printed("diff", path, path)
    printed("check", path, codes=(3,))
    printed("ranks", path, missing, codes=(0, 3))
    printed("export", path, "--to", "csv")
    printed("view", path, "-o", folder / f"page{name}.html")


@pytest.mark.parametrize("option", ["--by", "--at", "--conf", "--top", "--device", "--total"])
def test_words_on_the_command_line(folder: Path, printed: Callable[..., str], option: str) -> None:
    printed("explain", option, EVIL, codes=(2, 3))
    printed(EVIL, codes=(2,))


def test_each_form_of_a_text() -> None:
    for text in (
        EVIL,
        EVIL_LINE,
        f"::error::{MARK}",
        f"  ::Error ::{MARK}",
        f"a ##[{MARK}",
        "`",
        "``x",
        "|",
        "::group::",
    ):
        assert visible(text).isprintable()
        assert LOG_COMMAND.search(visible(text).lower()) is None
        assert visible(visible(text)) == visible(text)
        assert_only_our_markdown(
            f"{markdown(text)}\n\n| a |\n|---|\n| {markdown_code(text)} |\n\n{markdown_block((text,))}\n"
        )
        assert_only_our_markup(f"<p>{html_text(text)}</p>")
        assert workflow_command("error", text, title=text).count("\n") == 0
    assert len(visible("x" * 10**6)) < 2010
    assert visible("at::native::empty, std::error_code") == "at::native::empty, std::error_code"
    assert markdown("by @somebody, see #3") == r"by &#64;somebody, see \#3"
    block = MarkdownIt().parse(markdown_block((f"x\n```\n# {MARK}", "````", "~~~")))
    assert [token.type for token in block] == ["fence"]


def test_texts_in_the_program_itself(capsys: pytest.CaptureFixture[str]) -> None:
    from vramlens.capture.warn import say
    from vramlens.cli.message import say as say_beside

    for write in (say, say_beside):
        write(EVIL)
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert_steers_nothing(err)


def test_a_process_of_others_has_any_name() -> None:
    from vramlens.capture.memory.device_ledger import Ledger
    from vramlens.capture.memory.memory_now import HostMemory, MemoryNow
    from vramlens.ground.vocabulary import LedgerRow

    rows = (
        LedgerRow("other_processes", 5, "exact", f"12 ({EVIL}) 3 GiB"),
        LedgerRow("free", 5, "exact"),
    )
    now = MemoryNow(
        (Ledger(0, EVIL, None, 10, rows, notes=(EVIL,)),), HostMemory(), (EVIL,), (EVIL,)
    )
    assert_steers_nothing(str(now))


def test_nothing_writes_around_the_one_place() -> None:
    """Escaping of one's own is where forms begin to differ."""
    root = Path(os.path.dirname(__import__("vramlens").__file__))
    own = re.compile(r"unicode_escape|html\.escape|from html import|rich\.markup")
    allowed = {"foreign_text.py", "lines.py"}  # the lines of top: one cell a character
    assert {path.name for path in root.rglob("*.py") if own.search(path.read_text())} <= allowed | {
        "debug_server.py",  # PyTorch's own page, filled with text of this package
        "opening.py",  # an address of this server
    }
