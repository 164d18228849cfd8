"""``vramlens explain`` of a profiler trace: told by looking, compressed or not, and wrong usage
told in one line.
"""

import contextlib
import gzip
import json
import random
import sys
from pathlib import Path

import pytest

from support.documents import markdown
from support.kineto import training
from vramlens import api
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.profile.explained_profile import Profile
from vramlens.cli.main import main
from vramlens.errors import NotARecording, UsageError, VramlensError
from vramlens.report.profile.json import profile_to_json

TRAIN = str(Path(__file__).parents[2] / "data" / "profiler" / "train.json.gz")


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(training().text())
    return str(path)


def test_explains_a_trace(trace, capsys):
    assert main(["explain", trace]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("GPU 0 is busy for 26%")
    assert output.err == ""


def test_a_trace_fits_a_terminal_and_a_pipe_gets_all_of_it(trace, capsys, monkeypatch):
    assert main(["explain", trace]) == 0
    piped = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("LINES", "24")
    assert main(["explain", trace]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 24 < len(piped.splitlines())


def test_explains_a_compressed_trace(capsys):
    assert main(["explain", TRAIN]) == 0
    assert "train.py:38 in keep" in capsys.readouterr().out


def test_json_markdown_and_files(trace, capsys, tmp_path):
    assert main(["explain", trace, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["source"] == trace
    assert main(["explain", trace, "--markdown", "--top", "1"]) == 0
    assert capsys.readouterr().out.startswith("**")
    assert main(["explain", trace, "-o", str(tmp_path / "answer.txt")]) == 0
    assert (tmp_path / "answer.txt").read_text().startswith("GPU 0 is busy")
    assert main(["explain", trace, "--json", "-o", trace]) == 2
    assert json.loads(Path(trace).read_text())["traceEvents"]


@pytest.mark.parametrize(
    "options",
    [
        *(
            ["--by", "module"],
            ["--by", "category"],
            ["--device", "3"],
        ),
        *(
            ["--log", "x.log"],
            ["--total", "80GiB"],
            ["--json", "--by", "module"],
        ),
    ],
    ids=" ".join,
)
def test_what_a_trace_does_not_take(trace, options, capsys):
    assert main(["explain", trace, *options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "trace" in output.err


def test_the_device_asked_for(trace, capsys):
    assert main(["explain", trace, "--device", "cuda:0"]) == 0
    assert "GPU 0" in capsys.readouterr().out


def test_the_interface(trace):
    profile = api.explain(trace)
    assert isinstance(profile, Profile)
    assert profile.wall_ns == 3_000_000
    with pytest.raises(UsageError):
        api.explain(trace, at="oom")
    assert api.load(trace).peak().by_line


def test_other_json_is_no_recording(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}')
    with pytest.raises(NotARecording, match="is JSON"):
        api.load(path)


def test_progress_is_told(trace):
    told = []
    api.explain(trace, progress=told.append)
    assert told
    assert told[-1] == 1.0


OOM = (
    "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 100.88 MiB is"
    " free. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 194.25 MiB is reserved by PyTorch but"
    " unallocated."
)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(json.dumps({"level": "error", "message": text}) for text in ("started", OOM)),
        json.dumps([{"message": "started"}, {"message": OOM}], indent=2),
        json.dumps({"events": [{"message": OOM}], "traceEvents": None}),
        f"[rank0]: torch.OutOfMemoryError: {OOM}",
    ],
    ids=["lines", "array", "object", "rank"],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_an_error_in_other_json_is_still_found(text, compressed, tmp_path, capsys):
    path = tmp_path / "log.json"
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    assert main(["explain", str(path)]) == 0
    assert "tried to allocate 256.00 MiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph": "X"}]}']
)
def test_json_with_neither_is_refused(text, tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main(["explain", str(path)]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_damaged_gz_gives_what_is_whole(tmp_path, capsys):
    path = tmp_path / "trace.json.gz"
    whole = Path(TRAIN).read_bytes()
    path.write_bytes(whole[: len(whole) * 9 // 10])
    assert main(["explain", str(path)]) == 0
    assert "ends early" in capsys.readouterr().out


def test_help_names_traces(capsys):
    assert main(["explain", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "PyTorch profiler trace" in words
    assert "of a trace" in words


def test_damage_anywhere_is_survived_or_refused_in_one_line(tmp_path):
    """Bytes changed at random: an answer or one of the errors that are raised on purpose, never
    anything else.
    """
    whole = training().text().encode()
    path = tmp_path / "trace.json"
    chance = random.Random(7)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.choice(
                b'0123456789-.eE"{}[],:\\ \x00\xffntf'
            )
        path.write_bytes(data)
        with contextlib.suppress(VramlensError):
            profile = api.explain(path)
            assert isinstance(profile, (Profile, Explanation))
            if isinstance(profile, Profile):
                json.dumps(profile_to_json(profile), allow_nan=False)
                assert markdown(profile)


@pytest.mark.parametrize("grouping", ["operator", "shape", "line"])
@pytest.mark.parametrize("order", ["memory", "gpu", "cpu", "calls"])
def test_the_table_of_operators_is_grouped_and_ordered(grouping, order, capsys):
    assert main(["explain", TRAIN, "--by", grouping, "--sort", order, "--json"]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    column = {"memory": "self_allocated_bytes", "gpu": "self_device_us"} | {
        "cpu": "self_cpu_us",
        "calls": "calls",
    }
    figures = [row[column[order]] for row in profile["operators"]]
    assert figures == sorted(figures, reverse=True)
    assert profile["operators_by"] == grouping
    assert any(row["shapes"] for row in profile["operators"]) == (grouping == "shape")
    assert any(row["file"] for row in profile["operators"]) == (grouping == "line")


def test_the_table_of_operators_says_where_the_figures_are(capsys):
    assert main(["explain", TRAIN, "--by", "line", "--sort", "memory", "--top", "3"]) == 0
    text = capsys.readouterr().out
    assert "Operators, by line, the most memory asked for first on cpu" in text
    assert "lines are those at which the function begins" in text
    assert main(["explain", TRAIN, "--sort", "calls", "--markdown"]) == 0
    assert "aten::" in capsys.readouterr().out


def test_what_a_trace_or_a_recording_cannot_be_grouped_by(trace, capsys):
    recording = str(Path(TRAIN).parents[1] / "recordings" / "gpt.pickle.xz")
    for arguments in (
        [trace, "--by", "shape"],
        [recording, "--by", "operator"],
        [recording, "--sort", "cpu"],
    ):
        assert main(["explain", *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_share_of_the_time_that_the_cpu_was_busy(trace):
    use = api.explain(trace).cpu_use
    whole = api.explain(trace)
    assert use.busy_ns + use.waiting_ns + use.rest_ns == whole.wall_ns
    assert 0 < use.mean_threads <= use.threads


def test_another_moment_of_a_trace_is_that_of_its_memory(capsys):
    assert main(["explain", TRAIN, "--at", "end"]) == 0
    text = capsys.readouterr().out
    assert "192.00 KiB" in text
    assert "train.py:38 in keep" in text
    assert main(["explain", TRAIN, "--at", "peak"]) == 0
    assert "takes the most CPU time" in capsys.readouterr().out


def test_a_moment_that_a_trace_has_not_is_told(capsys):
    for moment in ("oom", "7000"):
        assert main(["explain", TRAIN, "--at", moment]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
