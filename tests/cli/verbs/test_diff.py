"""``vramlens diff``: its forms, its exit codes, and what it refuses."""

from __future__ import annotations

import html.parser
import json
import lzma
import re

import pytest

from support.recordings import DATA, data_of, truth_of
from vramlens.cli.main import main

OUTPUTS = str(DATA / "recordings" / "leak_outputs.pickle.xz")
GPT = str(DATA / "recordings" / "gpt.pickle.xz")
OTHER = str(DATA / "recordings" / "leak_none_warmup.pickle.xz")
OOM = str(DATA / "recordings" / "oom_train.pickle.xz")
MARKED = str(DATA / "captured" / "gpt.vram")


def data(capsys, *arguments: str):
    assert main(["diff", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_stands_first_and_a_command_last(capsys):
    assert main(["diff", OOM, GPT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Failed before, completes now: at least 890.00 MiB of headroom."
    assert lines[-2].startswith("Next, ")
    assert lines[-1] == f"  vramlens check {GPT} --budget vram.toml --update"
    assert max(map(len, lines[:-1])) <= 80


def test_two_programs_are_told_first_and_their_numbers_follow(capsys):
    assert main(["diff", OUTPUTS, OTHER]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("These look like two different programs: ")
    numbers = "Going by the numbers only: a step leaves 33.10 MiB behind before and 0 bytes after"
    assert numbers in " ".join(out.split())
    assert "rowth gone" not in out
    assert "peak allocated  482.81 MiB  318.23 MiB  -164.57 MiB  -34.1%" in out
    assert lines[-1] == f"  vramlens diff BEFORE.vram {OTHER}"
    found = data(capsys, OUTPUTS, OTHER)
    assert found["overlap"] == {
        "different_programs": True, "lines": {"before": 0, "after": 0}, "activations": {"before": 0, "after": 0},
        "modules": None,
    }  # fmt: skip
    assert [one["id"] for one in found["findings"]][:2] == ["different_programs", "peak_lower"]
    old, new = (
        truth_of(f"recordings/{name}")["stats"] for name in ("leak_outputs", "leak_none_warmup")
    )
    assert (
        found["peak_bytes_change"]
        == new["requested_bytes.all.peak"] - old["requested_bytes.all.peak"]
    )


def test_json_has_the_contract(capsys):
    found = data(capsys, OUTPUTS, GPT)
    assert {
        "schema", "before", "after", "peak_bytes_change", "bytes_per_step_before", "bytes_per_step_after", "by_line",
        "by_module", "findings",
    } <= set(found)  # fmt: skip
    assert found["schema"] == "vramlens/1"
    assert found["bytes_per_step_after"] == 0
    assert {"file", "line", "function", "bytes_change"} <= set(found["by_line"][0])
    assert {
        "id",
        "verdict",
        "title",
        "bytes",
        "file",
        "line",
        "function",
        "evidence",
        "fix",
    } == set(found["findings"][0])
    assert found["by_module"] == []
    lines = sum(line["bytes_change"] for line in found["by_line"])
    assert lines + found["unattributed_bytes_change"] == found["peak_bytes_change"]
    assert data(capsys, MARKED, MARKED)["findings"] == []


def test_modules_are_named(capsys):
    found = data(capsys, str(DATA / "captured" / "oom_forward.vram"), MARKED)
    assert {"name", "bytes_change"} == set(found["by_module"][0])
    assert found["headroom_exact"] is True


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, text):
        self.text += text


def hostile(tmp_path):
    """A recording whose names would draw on a terminal, a page and a pull request."""
    path = tmp_path / "odd.pickle"
    name = b"workloads.py"
    assert len(name) == 12
    evil = b"<b>|`@a\n\x1b[31"
    assert len(evil) == 12
    path.write_bytes(data_of("recordings/leak_outputs").replace(name, evil))
    return str(path)


def test_a_page_has_no_scripts_and_loads_nothing(capsys, tmp_path):
    assert main(["diff", hostile(tmp_path), GPT, "--html"]) == 0
    out = capsys.readouterr().out
    page = _Page()
    page.feed(out)
    assert not {"script", "img", "link", "iframe", "b", "a"} & set(page.tags)
    assert not [
        name for name, _value in page.attributes if name.startswith("on") or name in ("src", "href")
    ]
    assert "default-src 'none'" in out
    assert "Growth gone, as far as 4 steps show: 33.10 MiB per step before" in page.text
    assert "\x1b" not in out


def test_names_from_the_recording_cannot_draw(capsys, tmp_path):
    path = hostile(tmp_path)
    assert main(["diff", path, GPT]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["diff", path, GPT, "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "<b>" not in out
    assert re.search(r"(?<!&)[^#`]@a", out) is None
    columns = {
        line.count("|") - line.count("\\|") for line in out.splitlines() if line.startswith("|")
    }
    assert len(columns) <= 3  # one for each table: growth, figures, lines


def test_markdown_says_the_same(capsys):
    assert main(["diff", OOM, GPT, "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("**Failed before, completes now")
    assert "| peak allocated | 2.73 GiB |" in out
    assert "```sh\nvramlens check" in out


def test_fail_says_why_and_exits_with_1(capsys):
    assert main(["diff", GPT, OUTPUTS, "--fail"]) == 1
    assert "worse than before: " in capsys.readouterr().err
    assert main(["diff", OUTPUTS, OTHER, "--fail"]) == 0
    assert main(["diff", GPT, GPT, "--fail"]) == 0
    assert main(["diff", GPT, OUTPUTS]) == 0


def test_a_tolerance_is_a_size_or_a_share(capsys, tmp_path):
    small, large = (
        str(DATA / "found" / "double_load_fixed.pickle.xz"),
        str(DATA / "found" / "double_load.pickle.xz"),
    )
    assert main(["diff", small, large, "--fail"]) == 1
    assert main(["diff", small, large, "--fail", "--tolerance", "10 MiB"]) == 1
    assert main(["diff", small, large, "--fail", "--tolerance", "60MiB"]) == 0
    assert main(["diff", small, large, "--fail", "--tolerance", "10%"]) == 1
    assert main(["diff", small, large, "--fail", "--tolerance", "0.20"]) == 0
    assert main(["diff", large, small, "--fail"]) == 0


def test_repeated_runs(capsys):
    found = data(capsys, "--before", GPT, GPT, "--after", OUTPUTS)
    assert found["before"]["sources"] == [GPT, GPT]
    assert found["counters"]["requested"]["noise_bytes"] == 0
    assert main(["diff", "--before", GPT, GPT, "--after", OUTPUTS]) == 0
    assert "repeated runs differ by 0 bytes" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [GPT],
        [GPT, GPT, GPT],
        [GPT, GPT, "--before", GPT],
        ["--before", GPT],
        ["--after", GPT],
        [GPT, GPT, "--json", "--html"],
        [GPT, GPT, "--top", "0"],
        [GPT, GPT, "--tolerance", "1%"],
        [GPT, GPT, "--fail", "--tolerance", "a lot"],
        [GPT, GPT, "--fail", "--tolerance", "9" * 5000 + ".5"],
        [GPT, GPT, "--device", "5"],
        [GPT, GPT, "-o", GPT],
    ],
)
def test_wrong_usage(arguments, capsys):
    assert main(["diff", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vramlens: ")
    assert error.count("\n") == 1


def test_an_input_is_never_overwritten(tmp_path, capsys):
    first, second = tmp_path / "a.pickle", tmp_path / "b.pickle"
    for path in (first, second):
        path.write_bytes(data_of("recordings/gpt"))
    for path in (first, second):
        before = path.read_bytes()
        assert main(["diff", str(first), str(second), "-o", str(path)]) == 2
        assert path.read_bytes() == before
    out = tmp_path / "diff.html"
    assert main(["diff", str(first), str(second), "--html", "-o", str(out)]) == 0
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("content", [b"", b"text", b"\x80\x04N."])
@pytest.mark.parametrize("place", [0, 1])
def test_refused_input(tmp_path, capsys, content, place):
    path = tmp_path / "bad.pickle"
    path.write_bytes(content)
    files = [GPT, GPT]
    files[place] = str(path)
    assert main(["diff", *files]) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"vramlens: {path}")
    assert error.count("\n") == 1


def test_a_recording_cut_short_is_compared_as_far_as_it_goes(tmp_path, capsys):
    whole = data_of("recordings/gpt")
    path = tmp_path / "cut.pickle.xz"
    path.write_bytes(lzma.compress(whole[: len(whole) * 2 // 3]))
    assert main(["diff", str(path), GPT]) == 0
    assert "the recording before is incomplete" in " ".join(capsys.readouterr().out.split())


def test_a_failure_in_both_runs_says_out_of_memory_once(capsys):
    names = ("oom_train", "oom_train_expandable")
    paths = [str(DATA / "recordings" / f"{name}.pickle.xz") for name in names]
    assert main(["diff", *paths]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("Runs out of memory in both: the second run tried to allocate ")


def test_one_change_of_many_steps_is_no_range(capsys):
    paths = [str(DATA / "failures" / f"gpt.{name}.vram") for name in ("cap90", "cap97")]
    assert main(["diff", *paths]) == 0
    assert "The peaks of 1 of 2 steps are higher, by 128.00 MiB." in capsys.readouterr().out


def test_fail_passes_no_run_that_was_cut_off(tmp_path, capsys):
    path = tmp_path / "cut.pickle"
    whole = data_of("recordings/gpt")
    path.write_bytes(whole[: int(0.9 * len(whole))])
    assert main(["diff", GPT, str(path), "--fail"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"vramlens: cannot tell whether it is worse: the peak of {path} is a")
    assert "the file ends early" in said
    assert said.count("\n") == 1
    assert main(["diff", GPT, str(path)]) == 0
    assert main(["diff", str(path), GPT, "--fail", "--tolerance", "4GiB"]) == 0
