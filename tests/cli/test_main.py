"""The command line: exit codes, one-line errors, a quick start, and nothing half-written."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from support.recordings import DATA
from support.samples import EVERY
from vramlens import __version__, api
from vramlens.cli.main import VERBS, main
from vramlens.errors import InputError, NotARecording, UsageError
from vramlens.ground.vocabulary import Cause
from vramlens.report.explain.advice import next_command

ERROR_TEXT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 15.77 GiB"
    " of which 100.88 MiB is free. Process 4242 has 15.66 GiB memory in use. Of the allocated memory 15.00 GiB is"
    " allocated by PyTorch, and 194.25 MiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(f"step 1\n{ERROR_TEXT}\n")
    return str(path)


def vramlens(*arguments, **options):
    command = [sys.executable, "-m", "vramlens", *arguments]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **options.pop("env", {})}
    return subprocess.run(command, env=environment, timeout=300, check=False, **options)


@pytest.mark.parametrize("make", EVERY.values(), ids=list(EVERY))
@pytest.mark.parametrize("cause", list(Cause))
def test_advice_names_only_verbs_that_exist(make, cause):
    explanation = make()
    if explanation.oom is not None:
        explanation = replace(explanation, oom=replace(explanation.oom, cause=cause))
    for line in next_command(explanation).lines:
        program, verb, *_ = line.split()
        assert program != "vramlens" or verb in VERBS


def test_explains_an_error_text(log, capsys):
    assert main(["explain", log]) == 0
    output = capsys.readouterr()
    assert "tried to allocate 256.00 MiB" in output.out
    assert "\x1b" not in output.out
    assert output.err == ""


def test_prints_json(log, capsys):
    assert main(["explain", log, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "vramlens/1"
    assert data["oom"]["tried_bytes"] == 256 * 2**20


def test_prints_markdown(log, capsys):
    assert main(["explain", log, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("**")


def test_explains_the_example_and_says_so(capsys):
    assert main(["explain"]) == 0
    assert str(api.example_path()) in capsys.readouterr().err.splitlines()[0]


def as_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("verb", ["explain", "tune"])
def test_a_failure_fits_a_terminal_and_a_pipe_gets_all_of_it(verb, capsys, monkeypatch):
    assert main([verb, str(api.example_path())]) == 0
    piped = capsys.readouterr().out
    assert "shows all" not in piped
    with monkeypatch.context() as changed:
        as_terminal(changed)
        assert main([verb, str(api.example_path())]) == 0
    shown = capsys.readouterr().out
    assert 10 < len(shown.splitlines()) <= 24 < len(piped.splitlines())


def test_what_a_terminal_has_no_room_for_is_told(capsys, monkeypatch):
    as_terminal(monkeypatch)
    assert main(["explain"]) == 0
    assert " --top 10" in capsys.readouterr().out


def test_reads_standard_input(log):
    with open(log, "rb") as stream:
        done = vramlens("explain", "-", stdin=stream, capture_output=True)
    assert done.returncode == 0
    assert b"tried to allocate 256.00 MiB" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["explode"],
        ["explain", "--top", "0"],
        ["explain", "--top", "-3"],
        ["explain", "--top", "many"],
        ["explain", "--top", "9" * 5000],
        ["explain", "--device", "cuda"],
        ["explain", "--device", "cpu:0"],
        ["explain", "--device", "9" * 5000],
        ["explain", "--total", "0"],
        ["explain", "--log", "train.log"],
        ["explain", "run.pickle", "--log"],
        ["gpt.pickle"],
        ["explain", "--device", "-1"],
        ["explain", "--by", "colour"],
        ["explain", "--at", "lunch"],
        ["explain", "--at", "9" * 5000],
        ["explain", "--total", "9" * 5000 + ".5"],
        ["explain", "--total", "80 GB of memory"],
        ["explain", "--json", "--markdown"],
        ["explain", "a", "b"],
        ["explain", "-", "--log", "-"],
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    if arguments:
        assert output.err.startswith("vramlens: ")
        assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["explain", "--log", "train.log"],
            "--log needs a FILE: the recording of the run with this error\n",
        ),
        (["explain", "--top", "-3"], "argument --top: must be at least 1 "),
        (["explain", "--top=0"], "argument --top: must be at least 1 "),
        (["explain", "--total", "0GiB"], "argument --total: must be more than 0 "),
        (
            ["explain", "--device", "one"],
            "argument --device: 'one' is not a device: use 0 or cuda:0 ",
        ),
        (["gpt.pickle"], "gpt.pickle is not a verb; did you mean: vramlens explain gpt.pickle\n"),
        (["train.py"], "no verb is given; did you mean: vramlens run train.py\n"),
        (
            ["--leaks", "train.py", "--lr", "1"],
            "no verb is given; did you mean: vramlens run --leaks train.py --lr 1\n",
        ),
        (["my runs/gpt", "--json"], "did you mean: vramlens explain 'my runs/gpt' --json\n"),
    ],
)
def test_wrong_usage_says_what_to_do(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_an_existing_file_is_no_verb_whatever_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapshot").write_text("")
    (tmp_path / "explain").write_text(ERROR_TEXT)
    assert main(["snapshot"]) == 2
    assert "did you mean: vramlens explain snapshot" in capsys.readouterr().err
    assert main(["explain", "explain"]) == 0


@pytest.mark.parametrize("content", [b"", b"nothing of interest\n", b"\x80\x04N.", b"{}"])
def test_refused_input_exits_with_3(tmp_path, capsys, content):
    path = tmp_path / "input"
    path.write_bytes(content)
    assert main(["explain", str(path)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("vramlens: ")
    assert error.count("\n") == 1


def test_a_missing_file_exits_with_3(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "no\nsuch\x1b[31m.pickle")]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "\x1b" not in error
    assert main(["explain", str(tmp_path)]) == 3


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (UsageError("no"), 2),
        (InputError("no"), 3),
        (NotARecording("no"), 3),
        (KeyboardInterrupt(), 130),
        (MemoryError(), 3),
    ],
)
def test_exit_codes(monkeypatch, capsys, raised, code):
    def explain(*_, **__):
        raise raised

    monkeypatch.setattr(api, "explain", explain)
    assert main(["explain", "file"]) == code
    assert capsys.readouterr().err.count("\n") == (0 if code == 130 else 1)


def test_options_arrive(monkeypatch, log):
    seen = {}
    real = api.explain

    def explain(path, **options):
        seen.update(options)
        return real(path)

    monkeypatch.setattr(api, "explain", explain)
    assert (
        main(["explain", log, "--at", "7", "--device", "cuda:1", "--log", "x", "--total", "80GiB"])
        == 0
    )
    assert seen.pop("progress") is not None
    assert seen == {"at": "7", "device": 1, "log": "x", "total_bytes": 80 * 2**30}


def test_a_failure_is_shown_at_its_own_moment(capsys):
    example = str(api.example_path())
    assert main(["explain", example]) == 0
    assert "in use at the failure" in capsys.readouterr().out
    assert main(["explain", example, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["heap"]["event"] == data["peak"]["event"]


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vramlens {__version__}\n"
    assert main(["--help"]) == 0
    assert "explain" in capsys.readouterr().out
    assert main(["explain", "--help"]) == 0
    assert "--by" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["explain", "--help"], ["explain", "--top", "0"]]
)
def test_starts_without_numpy_and_rich(arguments):
    program = (
        "import sys; from vramlens.cli.main import main; main(sys.argv[1:]);"
        "sys.exit(', '.join({'numpy', 'rich', 'json'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_verb_loads_no_other_verb_and_nothing_about_failures_without_one():
    program = (
        "import sys; from vramlens.cli.main import main; main(sys.argv[1:]);"
        "print(*(name for name in sys.modules"
        " if name.startswith(('vramlens.cli.verbs.', 'vramlens.replay.need'))), file=sys.stderr)"
    )
    recording = DATA / "recordings/streams.pickle.xz"
    done = subprocess.run(
        [sys.executable, "-c", program, "explain", str(recording), "--json"],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.split() == [
        "vramlens.cli.verbs.reading",
        "vramlens.cli.verbs.reading.explain",
    ]


class TestOutputFile:
    """``-o``: the whole file or nothing."""

    def test_writes(self, log, tmp_path, capsys):
        path = tmp_path / "answer.txt"
        assert main(["explain", log, "-o", str(path)]) == 0
        assert "tried to allocate 256.00 MiB" in path.read_text()
        assert capsys.readouterr().out == ""
        assert sorted(os.listdir(tmp_path)) == ["answer.txt", "train.log"]

    def test_keeps_the_mode_and_follows_links(self, log, tmp_path):
        path, link = tmp_path / "answer.txt", tmp_path / "link"
        path.write_text("old")
        path.chmod(0o640)
        link.symlink_to(path)
        assert main(["explain", log, "-o", str(link), "--json"]) == 0
        assert link.is_symlink()
        assert json.loads(path.read_text())
        assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_refuses_to_overwrite_the_input(self, log, capsys):
        assert main(["explain", log, "-o", log]) == 2
        assert "is the input file" in capsys.readouterr().err
        assert ERROR_TEXT in Path(log).read_text()

    @pytest.mark.parametrize("where", ["no/such/folder/x", "."])
    def test_unwritable_places_exit_with_3(self, log, tmp_path, capsys, where):
        assert main(["explain", log, "-o", str(tmp_path / where)]) == 3
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert os.listdir(tmp_path) == ["train.log"]

    def test_a_full_disk_leaves_nothing_behind(self, log, tmp_path, capsys, monkeypatch):
        def full(_):
            raise OSError(28, "No space left on device")

        path = tmp_path / "answer.txt"
        path.write_text("old")
        monkeypatch.setattr(os, "fsync", full)
        assert main(["explain", log, "-o", str(path)]) == 3
        assert "no space left on device" in capsys.readouterr().err
        assert path.read_text() == "old"
        assert sorted(os.listdir(tmp_path)) == ["answer.txt", "train.log"]

    def test_a_device_is_written_to_not_replaced(self, log):
        assert main(["explain", log, "-o", os.devnull]) == 0
        assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


class TestStandardOutput:
    """What can go wrong with it."""

    def test_a_reader_that_goes_away_is_no_error(self, log):
        reader, writer = os.pipe()
        os.close(reader)
        done = vramlens("explain", log, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert done.stderr == b""
        assert done.returncode == 0

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
    def test_a_full_disk_exits_with_3(self, log):
        with open("/dev/full", "wb") as full:
            done = vramlens("explain", log, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 3
        assert done.stderr.count(b"\n") == 1
        assert b"no space left on device" in done.stderr.lower()

    def test_a_closed_one_exits_with_3(self, log):
        command = f'"{sys.executable}" -m vramlens explain "{log}" >&-'
        done = subprocess.run(
            command,
            shell=True,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
            stderr=subprocess.PIPE,
            check=False,
        )
        assert done.returncode == 3
        assert done.stderr.count(b"\n") == 1

    def test_an_encoding_that_lacks_a_letter_does_not_matter(self, log):
        done = vramlens(
            "explain", log, capture_output=True, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
        )
        assert done.returncode == 0
        done.stdout.decode("ascii")


def test_a_log_has_no_modules_to_show(log, capsys):
    assert main(["explain", log, "--by", "module"]) == 2
    assert "--by module is only for recordings" in capsys.readouterr().err
