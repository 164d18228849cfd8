"""``vramlens check``: budgets from the command line, GitHub's annotations, exit codes."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from support.recordings import DATA, data_of
from support.vram_files import vram
from vramlens.analyses.budget.broken_limits import Result
from vramlens.analyses.budget.budget import Check
from vramlens.analyses.budget.budget_file import SIZE, Limit
from vramlens.analyses.finding import Finding, Place
from vramlens.cli.main import main
from vramlens.foreign_text import workflow_command
from vramlens.report.check.github import MOST_ERRORS, check_to_github

GPT = str(DATA / "recordings" / "gpt.pickle.xz")
LONG = str(DATA / "recordings" / "leak_none_warmup.pickle.xz")
LEAK = str(DATA / "recordings" / "leak_outputs.pickle.xz")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    return tmp_path


def write(folder, text: str) -> str:
    (folder / "vram.toml").write_text(text)
    return "vram.toml"


def test_update_writes_a_first_budget_that_then_holds(folder, capsys):
    assert main(["check", LONG, "--update"]) == 0
    assert capsys.readouterr().out.startswith("vram.toml: written.\n  peak_allocated: ")
    assert main(["check", LONG]) == 0
    assert capsys.readouterr().out.startswith("Within budget: all 4 limits are met")
    assert main(["check", LEAK]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Over budget: ")
    assert "growth_per_step" in out
    assert out.rstrip().endswith(f"vramlens leaks {LEAK}")


def test_update_names_what_git_can_show(folder, capsys):
    assert main(["check", GPT, "--update"]) == 0
    assert capsys.readouterr().out.endswith(
        "\n  vramlens check OTHER.vram --budget vram.toml\n"
    )  # outside a work tree
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    assert main(["check", GPT, "--update"]) == 0
    assert capsys.readouterr().out.endswith(
        "\n  git add vram.toml && git diff --cached vram.toml\n"
    )


def test_update_runs_nothing_of_the_checkout(folder):
    """Git runs what a checkout's settings name, whoever wrote them."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    trap = folder / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {folder / 'was-run'}\n")
    trap.chmod(0o755)
    for setting in ("core.fsmonitor", "diff.external", "core.pager", "core.hooksPath"):
        subprocess.run(["git", "-C", str(folder), "config", setting, str(trap)], check=True)
    assert main(["check", GPT, "--update"]) == 0
    assert main(["check", GPT, "--update"]) == 0
    assert not (folder / "was-run").exists()


def test_the_room_below_the_nearest_limit_is_told(folder, capsys):
    assert main(["check", GPT, "--update"]) == 0
    capsys.readouterr()
    assert main(["check", GPT]) == 0
    assert "peak_requested is closest: 516 bytes below its limit of 1.84 GiB." in " ".join(
        capsys.readouterr().out.split()
    )


def test_github_leaves_commands_as_they_are_and_says_nothing_twice(folder, capsys):
    write(folder, '[budget]\npeak_allocated = "1 MiB"\n')
    assert main(["check", GPT, "--format", "github"]) == 1
    head, message = capsys.readouterr().out.rstrip().removeprefix("::").split("::")
    assert f"run vramlens explain {GPT} to see" in message
    assert "Vramlens" not in message
    assert "peak_allocated is " in head
    assert "peak_allocated is " not in message


@pytest.mark.parametrize("width", [40, 60, 80])
def test_long_names_are_cut_in_the_middle(folder, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    modules = [f"model.{'block.' * 20}{end}" for end in ("first", "second")]
    write(
        folder,
        "[budget]\n" + "".join(f'[budget.module."{one}"]\npeak = "1 GiB"\n' for one in modules),
    )
    assert main(["check", GPT]) == 1
    out = capsys.readouterr().out
    table = out.split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= width
    assert 'first" peak' in table or width < 80
    assert 'second" peak' in table or width < 80


def test_a_command_goes_on_in_the_next_line_of_a_narrow_terminal(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    write(folder, '[budget]\npeak_allocated = "1 TiB"\n')
    os.symlink(GPT, folder / "a_recording_of_some_length.pickle.xz")
    assert main(["check", "a_recording_of_some_length.pickle.xz"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-2:] == [
        "  vramlens check a_recording_of_some_length.pickle.xz \\",
        "    --budget vram.toml --format github",
    ]


def test_update_says_what_changed(folder, capsys):
    write(folder, '[budget]\npeak_requested = "20 GiB"  # why\n')
    assert main(["check", GPT, "--update"]) == 0
    out = capsys.readouterr().out
    assert "peak_requested: 20.00 GiB before, " in out
    assert "# why" in (folder / "vram.toml").read_text()
    assert main(["check", GPT, "--update"]) == 0
    text = (folder / "vram.toml").read_text()
    capsys.readouterr()
    assert main(["check", GPT, "--update"]) == 0
    assert (folder / "vram.toml").read_text() == text
    assert capsys.readouterr().out.startswith("vram.toml: unchanged.\n\nNext, ")


def test_an_unchanged_limit_is_not_told_as_changed(folder, capsys):
    assert main(["check", LONG, "--update"]) == 0
    assert main(["check", LONG, "--update"]) == 0
    assert "vram.toml: unchanged." in capsys.readouterr().out


def test_a_fix_that_is_the_next_step_stands_once(folder, capsys):
    write(folder, "[budget]\nalloc_retries = 0\nout_of_memory = 0\n")
    assert main(["check", str(DATA / "recordings" / "oom_train.pickle.xz")]) == 1
    assert capsys.readouterr().out.count("vramlens explain") == 1


def test_json_has_the_contract(folder, capsys):
    write(folder, '[budget]\npeak_allocated = "1 MiB"\n[budget.module."model"]\npeak = "1 GiB"\n')
    assert main(["check", GPT, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        "schema",
        "source",
        "budget",
        "passed",
        "results",
        "findings",
        "ranks",
        "notes",
    }
    assert found["passed"] is False
    assert {"scope", "limit", "value", "passed"} <= set(found["results"][0])
    assert (
        found["results"][0] | {"scope": "peak_allocated", "limit": 1 << 20, "passed": False}
        == found["results"][0]
    )
    assert found["results"][1]["value"] is None
    assert found["results"][1]["passed"] is None
    assert [finding["id"] for finding in found["findings"]] == ["over_budget", "cannot_tell"]
    assert main(["check", GPT, "--json"]) == 1


def test_a_baseline_tells_what_rose(folder, capsys):
    fixed, double = (
        str(DATA / "found" / f"{name}.pickle.xz") for name in ("double_load_fixed", "double_load")
    )
    assert main(["check", fixed, "--update"]) == 0
    assert main(["check", double, "--baseline", fixed]) == 1
    assert "+56.08 MiB: train/programs.py:448 in double_load" in capsys.readouterr().out


def test_github_annotates_the_line_in_the_repository_and_writes_the_summary(
    folder, capsys, monkeypatch
):
    (folder / "train").mkdir()
    (folder / "train" / "workloads.py").write_text("")
    summary = folder / "summary.md"
    summary.write_text("already there\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    write(folder, '[budget]\npeak_allocated = "1 MiB"\ngrowth_per_step = 0\n')
    assert main(["check", LEAK, "--format", "github"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("::error file=train/workloads.py,line=")
    assert "%0A" in lines[0]
    assert "line=146," in lines[1]
    text = summary.read_text()
    assert text.startswith("already there\n❌ **Over budget: peak")
    assert "| peak_allocated |" in text


def test_github_points_at_the_budget_where_the_line_is_not_in_the_repository(folder, capsys):
    write(folder, '[budget]\n\npeak_allocated = "1 MiB"\n')
    assert main(["check", LEAK, "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith(
        "::error file=vram.toml,line=3,title=vramlens%3A peak_allocated is "
    )
    write(folder, '[budget]\npeak_allocated = "1 TiB"\n')
    assert main(["check", LEAK, "--format", "github"]) == 0
    assert "::error" not in capsys.readouterr().out


def test_a_workflow_command_escapes_as_github_reads_it():
    made = workflow_command("error", "50% of\r\nall: a,b", file="a,b:c%.py", line=3, title=None)
    assert made == r"::error file=a%2Cb%3Ac%25.py,line=3::50%25 of\r%0Aall: a,b"
    assert len(workflow_command("error", "x" * 100_000)) < 4100


def test_more_broken_limits_than_github_shows_are_counted(folder):
    limits = [Limit(("module", f"m{i}", "peak"), SIZE, 1, i) for i in range(25)]
    results = tuple(Result(limit, 2, False) for limit in limits)
    findings = tuple(
        Finding("over_budget", "proven", f"{one.limit.scope} is 2", 1, Place("x.py", 1, "f"))
        for one in results
    )
    lines = check_to_github(Check("run", "vram.toml", False, results, findings), {}).splitlines()
    assert len(lines) == MOST_ERRORS
    assert "16 more limits are broken" in lines[-1]
    assert 'm8" peak is 2' in lines[-2]


def test_a_full_summary_is_left_alone(folder, capsys, monkeypatch):
    summary = folder / "summary.md"
    summary.write_bytes(b"x" * (1 << 20))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    write(folder, "[budget]\npeak_allocated = 1\n")
    assert main(["check", GPT, "--format", "github"]) == 1
    assert summary.stat().st_size == 1 << 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such budget; add --update to create it"),
        ("[budget]\n", "[budget] has no limit in it"),
        ('[budget]\npeak_alocated = "1 MiB"\n', "vram.toml:2: 'peak_alocated' is not a limit"),
        ("[budget", "is not TOML"),
    ],
)
def test_a_budget_that_cannot_be_read(folder, capsys, text, said):
    if text is not None:
        write(folder, text)
    assert main(["check", GPT]) == 3
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_broken_budget_is_not_overwritten_by_an_update(folder, capsys):
    write(folder, "[budget\nmine = 1\n")
    assert main(["check", GPT, "--update"]) == 3
    assert (folder / "vram.toml").read_text() == "[budget\nmine = 1\n"
    recording = folder / "run.pickle"
    recording.write_bytes(data_of("recordings/gpt"))
    assert main(["check", "run.pickle", "--budget", "run.pickle", "--update"]) == 3
    assert recording.read_bytes() == data_of("recordings/gpt")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [GPT, GPT],
        [GPT, "--format", "xml"],
        [GPT, "--update", "--format", "github"],
        [GPT, "--update", "--baseline", GPT],
        [GPT, "-o", "vram.toml"],
    ],
)
def test_wrong_usage(folder, capsys, arguments):
    write(folder, "[budget]\npeak_allocated = 1\n")
    assert main(["check", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (folder / "vram.toml").read_text() == "[budget]\npeak_allocated = 1\n"


def test_markdown(folder, capsys):
    write(folder, '[budget]\npeak_allocated = "1 TiB"\nfragmentation = "100%"\n')
    assert main(["check", GPT, "--format", "markdown", "-o", "out.md"]) == 0
    assert (folder / "out.md").read_text().startswith("✅ **Within budget: all 2 limits are met")


def test_a_name_cannot_command_the_workflow():
    check = Check("a\n::error::b", "vram.toml", True, (), ())
    assert check_to_github(check, {}).count("\n") == 1


def test_a_run_that_died_of_out_of_memory_breaks_any_budget_that_does_not_allow_it(folder, capsys):
    failed = str(DATA / "captured" / "oom_forward.vram")
    budget = write(folder, '[budget]\npeak_allocated = "3 GiB"\n')
    assert main(["check", failed, "--budget", budget]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Over budget: the run ended out of memory.\n")
    assert "\n  out_of_memory          0         1  over: the run ended out of memory\n" in out
    assert out.endswith(f"\nNext, find out what failed and why:\n  vramlens explain {failed}\n")
    assert main(["check", failed, "--budget", budget, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["passed"] for row in rows] == [True, False]
    assert [rows[1][key] for key in ("scope", "limit", "value")] == ["out_of_memory", 0, 1]
    assert main(["check", failed, "--budget", budget, "--format", "github"]) == 1
    assert "the run ended out of memory" in capsys.readouterr().out
    budget = write(folder, '[budget]\npeak_allocated = "3 GiB"\nout_of_memory = 0\n')
    assert main(["check", failed, "--budget", budget]) == 1
    budget = write(folder, '[budget]\npeak_allocated = "3 GiB"\nout_of_memory = 1\n')
    assert main(["check", failed, "--budget", budget]) == 0
    assert main(["check", GPT, "--budget", budget]) == 0
    assert capsys.readouterr().err == ""


def test_no_limits_are_taken_from_a_run_that_died(folder, capsys):
    failed = str(DATA / "captured" / "oom_forward.vram")
    refused = f"{failed}: the run ended with an out-of-memory error, so no limits were taken from it (out_of_memory = 1 in the budget would"
    assert main(["check", failed, "--update"]) == 3
    assert not (folder / "vram.toml").exists()
    budget = write(folder, '[budget]\npeak_allocated = "3 GiB"\nout_of_memory = 0\n')
    assert main(["check", failed, "--budget", budget, "--update"]) == 3
    assert (folder / "vram.toml").read_text().endswith('"3 GiB"\nout_of_memory = 0\n')
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count(refused) == told.err.count("\n") == 2
    budget = write(folder, '[budget]\npeak_allocated = "3 GiB"\nout_of_memory = 1\n')
    assert main(["check", failed, "--budget", budget, "--update"]) == 0
    assert "out_of_memory = 1\n" in (folder / "vram.toml").read_text()


def test_how_the_program_ended_tells_where_no_failed_request_does(folder, capsys):
    """The event may be overwritten, or of a device with a lower peak; an error of another kind
    is not this.
    """
    budget = write(folder, '[budget]\npeak_allocated = "1 TiB"\n')
    said = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB, at train.py:31 in step"
    )
    died = vram(folder / "died.vram", data_of("recordings/leak_cycle"), {"ending": said})
    other = vram(
        folder / "other.vram",
        data_of("recordings/leak_cycle"),
        {"ending": "ValueError: out of memory"},
    )
    assert main(["check", str(died), "--budget", budget]) == 1
    assert capsys.readouterr().out.startswith("Over budget: the run ended out of memory.")
    assert main(["check", str(other), "--budget", budget]) == 0


def test_failures_that_were_caught_are_not_this(folder, capsys):
    caught = str(DATA / "found" / "oom_recovered.pickle.xz")
    assert (
        main(["check", caught, "--budget", write(folder, '[budget]\npeak_allocated = "1 TiB"\n')])
        == 0
    )
    assert "out_of_memory" not in capsys.readouterr().out
    assert main(["check", caught, "--budget", write(folder, "[budget]\nout_of_memory = 0\n")]) == 1
    assert "the run ended out of memory" not in capsys.readouterr().out
