"""``vramlens run``: the program behaves as without it, and leaves its recordings."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zipapp
import zipfile
from pathlib import Path

import pytest

import vramlens
from support.installed import PYTHON_PATH
from support.programs import PLUG_IN, meta_of, python, recordings, run_program

pytest.importorskip("torch")

USES_GPU = PLUG_IN + "import torch\ngpu.use()\n"
STEPS = USES_GPU + (
    "model = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    "for i in range({steps}):\n"
    "    model(torch.ones(2)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
    "    print(i, gpu.history, flush=True)\n"
)


_NOISY = (
    "import atexit, sys\n"
    "class Noisy:\n"
    "    def __init__(self, name): self.name = name\n"
    "    def __del__(self): print('gone', self.name, flush=True)\n"
    "kept = Noisy('global')\n"
    "atexit.register(print, 'atexit', flush=True)\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "import sys; print('out', sys.argv[1:], __name__, __file__); print('err', file=sys.stderr); sys.exit(7)",
        "def f():\n    raise ValueError('one')\ntry:\n    f()\nexcept ValueError as e:\n    raise KeyError('two') from e",
        "def f(:\n    pass",
        "import os; print('gone', flush=True); os._exit(5)",
        "import sys; sys.exit('a message')",
        "raise SystemExit",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'bye')\nimport threading; threading.Thread(target=print, args=('t',)).start()",
        "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__, a[2].tb_lineno)\n1/0",
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)",
        "x: int = 1\nprint(__annotations__, __doc__, __spec__, __package__, __builtins__.__name__)",
        "import sys; print(sys.path[0]); print(sys.stdin.read())",
        # What the ending frames held is gone before Python's own end; what failed is kept for
        # sys.last_traceback, no longer.
        _NOISY + "def f():\n    x = Noisy('local')\n    sys.exit(3)\nf()",
        _NOISY + "def f():\n    x = Noisy('local')\n    raise KeyError('no')\nf()",
        _NOISY + "import signal; signal.raise_signal(signal.SIGINT)",
        "import atexit, sys\natexit.register(lambda: print(sys.excepthook is sys.__excepthook__,"
        " sys.last_traceback.tb_frame.f_code.co_name, sys.last_traceback.tb_next))\n1/0",
        "print(list(globals()))",
    ],
)
def test_the_program_ends_as_without_vramlens(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    alone = python(tmp_path, "train.py", "--a", "b")
    watched = python(tmp_path, "-m", "vramlens", "run", "train.py", "--a", "b")
    assert watched.returncode == alone.returncode
    assert watched.stdout == alone.stdout
    ours = [line for line in watched.stderr.splitlines() if line.startswith("vramlens: ")]
    assert [
        line for line in watched.stderr.splitlines() if line not in ours
    ] == alone.stderr.splitlines()
    assert recordings(tmp_path) == []


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys; print(sys.argv, sys.path[0], __package__, __spec__.name); from . import x"
    )
    (package / "x.py").write_text("print(__name__)\nraise LookupError")
    for name in ("package", "package.x"):
        alone = python(tmp_path, "-m", name, "1")
        watched = python(tmp_path, "-m", "vramlens", "run", "-m", name, "1")
        assert watched.stdout == alone.stdout
        assert watched.returncode == alone.returncode == 1
        assert watched.stderr.splitlines()[-2] == alone.stderr.splitlines()[-1] == "LookupError"


_CONTAINED = (
    "import sys, helper, __main__\n"
    "print(sys.argv, sys.path[0], __file__, __spec__.name, repr(__package__), list(globals()))\n"
    "print(globals() is vars(__main__), type(__loader__).__name__)\n"
    "helper.fail()\n"
)


@pytest.mark.parametrize("path", ["folder", "./folder", "job.pyz", "./train.py"])
def test_every_form_of_a_path_runs_as_python_runs_it(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(_CONTAINED)
    (tmp_path / "folder" / "helper.py").write_text("def fail(): raise OSError('here')\n")
    zipapp.create_archive(tmp_path / "folder", tmp_path / "job.pyz")
    (tmp_path / "train.py").write_text("print(__file__)\nraise OSError('here')\n")
    alone = python(tmp_path, path, "1")
    watched = python(tmp_path, "-m", "vramlens", "run", path, "1")
    assert (watched.returncode, watched.stdout) == (alone.returncode, alone.stdout)
    assert _programs_lines(watched.stderr) == _programs_lines(alone.stderr)


def _programs_lines(text: str) -> list[str]:
    """Of standard error what the program's own lines print: not Python's way to them, nor ours."""
    lines = [line for line in text.splitlines() if not line.startswith("vramlens: ")]
    return [line for line in lines if "runpy" not in line and "exec(code" not in line]


def test_modules_of_the_programs_folder_are_its_own(tmp_path: Path) -> None:
    """They are named like Python's own ones that vramlens itself needs."""
    names = ("argparse", "json", "platform", "profile", "queue", "shlex", "textwrap")
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"IT = '{name} of the program'\n")
    imports = "\n".join(f"import {name}; print(getattr({name}, 'IT', None))" for name in names)
    (tmp_path / "train.py").write_text(imports)
    alone = python(tmp_path, "train.py")
    watched = python(tmp_path, "-m", "vramlens", "run", "train.py")
    assert alone.stdout.count("of the program") >= 6
    assert (watched.returncode, watched.stdout) == (0, alone.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "5:5", "x.py"], "'5:5' is not a range of steps"),
        (["--every", "0", "x.py"], "'0' is not a number of 1 or more"),
        (["--profile", __file__], "--profile needs --steps"),
        (["--profile", "--steps", "1:2", "-o", "x.vram", __file__], "choose a folder"),
        ([], "required: PROGRAM"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    answer = python(tmp_path, "-m", "vramlens", "run", *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py"], "nothing.py: no such script"),
        (["-m", "no_such_module"], "-m no_such_module: No module named no_such_module"),
    ],
)
def test_a_program_that_is_not_there_is_missing_input(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    answer = python(tmp_path, "-m", "vramlens", "run", *arguments)
    assert answer.returncode == 3
    assert answer.stderr == f"vramlens: {message}\n"


def test_a_recording_is_written_at_the_end(tmp_path: Path) -> None:
    answer = run_program(tmp_path, USES_GPU, "-o", "run.vram")
    assert answer.returncode == 0
    assert recordings(tmp_path) == ["run.vram"]
    assert f"vramlens: wrote {tmp_path}/run.vram (" in answer.stderr
    meta = meta_of(tmp_path / "run.vram")
    assert (meta["trigger"], meta["command"], meta["module_marks"]) == ("exit", ["train.py"], True)
    recording = vramlens.load(tmp_path / "run.vram")
    assert recording.torch_version == "2.13.0"
    assert recording.peak().requested_bytes > 0


def test_a_folder_gets_a_name_for_each_process(tmp_path: Path) -> None:
    run_program(tmp_path, USES_GPU, "-o", "runs/r1")
    (alone,) = (tmp_path / "runs/r1").iterdir()
    assert alone.name.startswith("train-")
    run_program(tmp_path, USES_GPU, "-o", "runs/r2", RANK="3", WORLD_SIZE="8")
    assert recordings(tmp_path / "runs/r2") == ["rank00003.vram", "rank00003.vram.summary"]
    assert (tmp_path / "runs/r2/rank00003.vram.summary").stat().st_size < 5_000
    run_program(tmp_path, USES_GPU, "-o", "one.vram", RANK="3", WORLD_SIZE="8")
    assert (tmp_path / "one-rank00003.vram").exists()


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    answer = run_program(tmp_path, "import torch; print(torch.ones(2).sum())")
    assert answer.stdout == "tensor(2.)\n"
    assert answer.stderr == (
        "vramlens: PyTorch cannot use a GPU here, so nothing was recorded (run 'vramlens doctor' to see why; 'vramlens run --leaks' finds leaks on the CPU)\n"
    )
    assert recordings(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            (),
            'AssertionError("Torch not compiled with CUDA enabled")',
            "the script needs a GPU, and PyTorch can use none here: 'vramlens predict train.py'"
            " predicts its memory without one; use 'vramlens run' on the machine with the GPU"
            " ('vramlens doctor' says why there is none here)",
        ),
        (
            ("--leaks",),
            'RuntimeError("Found no NVIDIA driver on your system. Please check that you have one.")',
            "the script needs a GPU, and PyTorch can use none here: 'vramlens predict -o run.vram"
            " train.py' and 'vramlens leaks run.vram' show what grows without one; use 'vramlens run"
            " --leaks' on the machine with the GPU ('vramlens doctor' says why there is none here)",
        ),
    ],
)
def test_a_program_that_needs_a_gpu_is_told_what_works_without(
    tmp_path: Path, options: tuple[str, ...], error: str, words: str
) -> None:
    answer = run_program(tmp_path, f"import torch\nraise {error}", *options)
    assert answer.returncode == 1
    traceback, _, advice = answer.stderr.partition("vramlens: ")
    assert traceback.startswith("Traceback")
    assert " ".join(advice.split()) == words  # broken at 80 columns, and nothing else
    assert recordings(tmp_path) == []


def test_steps_are_recorded_then_the_program_goes_on(tmp_path: Path) -> None:
    answer = run_program(tmp_path, STEPS.format(steps=6), "--steps", "2:4", "-o", "run.vram")
    seen = [line.split()[1] for line in answer.stdout.splitlines()]
    assert seen == ["False", "True", "True", "False", "False", "False"]
    assert recordings(tmp_path) == ["run.vram"]
    meta = meta_of(tmp_path / "run.vram")
    assert (meta["trigger"], meta["step"], meta["step_source"]) == ("steps", 4, "optimizer")
    assert answer.stderr.count("wrote") == 1


def test_every_keeps_the_last_two(tmp_path: Path) -> None:
    answer = run_program(tmp_path, STEPS.format(steps=7), "--every", "2", "-o", "run.vram")
    assert recordings(tmp_path) == ["run-previous.vram", "run.vram"]
    assert answer.stderr.count("wrote") == 4  # three times, and at the end
    assert meta_of(tmp_path / "run.vram")["trigger"] == "exit"
    assert meta_of(tmp_path / "run-previous.vram")["step"] == 4


def test_an_out_of_memory_error_carries_its_verdict(tmp_path: Path) -> None:
    answer = run_program(tmp_path, USES_GPU + "gpu.fail()", "-o", "run.vram")
    assert answer.returncode == 1
    assert (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB."
        in answer.stderr
    )
    assert f"vramlens: recording of this failure: {tmp_path}/run.vram" in answer.stderr
    assert recordings(tmp_path) == ["run.vram"]  # and none at exit: this one tells the end
    meta = meta_of(tmp_path / "run.vram")
    assert meta["trigger"] == "oom"
    assert "observer(" in meta["oom"].pop("expression")
    assert type(meta["oom"].pop("source")) is list
    assert meta["oom"].pop("while_handling") is False
    assert meta["oom"].pop("node") is None
    assert meta["oom"].pop("padded_batch") is None
    assert meta["oom"].pop("ignored_labels") is None
    assert meta["oom"].pop("idle_checkpointing") is None
    assert meta["oom"].pop("row_lengths") == []
    assert meta["oom"] == {"device": 0, "requested_bytes": 1 << 30, "device_free_bytes": 137 << 30}


def test_a_failure_that_is_caught_keeps_its_recording(tmp_path: Path) -> None:
    text = USES_GPU + (
        "for i in range(2):\n"
        "    try:\n        gpu.fail()\n"
        "    except torch.OutOfMemoryError as error:\n"
        "        print(*[note.splitlines()[-1] for note in getattr(error, '__notes__', ['none'])])\n"
    )
    answer = run_program(tmp_path, text, "-o", "run.vram")
    assert answer.returncode == 0
    if sys.version_info >= (3, 11):
        assert [line.rpartition("/")[2] for line in answer.stdout.splitlines()] == [
            "run.vram",
            "run-2.vram",
        ]
    assert recordings(tmp_path) == ["run-2.vram", "run-3.vram", "run.vram"]
    assert [meta_of(tmp_path / name)["trigger"] for name in recordings(tmp_path)] == [
        "oom",
        "exit",
        "oom",
    ]


def test_a_failure_in_another_thread(tmp_path: Path) -> None:
    text = USES_GPU + "import threading\nt = threading.Thread(target=gpu.fail); t.start(); t.join()"
    answer = run_program(tmp_path, text, "-o", "run.vram")
    assert "recording of this failure" in answer.stderr
    assert meta_of(tmp_path / "run.vram")["trigger"] == "oom"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = run_program(tmp_path, USES_GPU + "gpu.fail()", "-o", "file/run.vram")
    assert answer.returncode == 1
    assert (
        answer.stderr.count("vramlens: no recording was written") == 2
    )  # at the failure and at the end
    assert "OutOfMemoryError" in answer.stderr


def test_killed_while_writing_the_old_file_stays(tmp_path: Path) -> None:
    text = USES_GPU + (
        "import os, signal, vramlens.capture.recording.recording_file as r\n"
        "class Dies(r.pickle.Pickler):\n"
        "    def dump(self, x): os.kill(os.getpid(), signal.SIGKILL)\n"
        "r.pickle.Pickler = Dies\n"
    )
    run_program(tmp_path, USES_GPU, "-o", "run.vram")
    before = (tmp_path / "run.vram").read_bytes()
    assert run_program(tmp_path, text, "-o", "run.vram").returncode == -signal.SIGKILL
    assert (tmp_path / "run.vram").read_bytes() == before


def test_a_program_that_records_by_itself_keeps_its_own_settings(tmp_path: Path) -> None:
    answer = run_program(
        tmp_path,
        PLUG_IN + "import torch\ngpu.history = True\ngpu.use()\nprint(gpu.calls)",
        "-o",
        "r.vram",
    )
    assert answer.stdout == "[]\n"
    assert meta_of(tmp_path / "r.vram")["recorded_by_the_program"] is True


def test_redacted_it_tells_no_paths(tmp_path: Path) -> None:
    run_program(tmp_path, USES_GPU, "--redact", "-o", "run.vram")
    with zipfile.ZipFile(tmp_path / "run.vram") as archive:
        everything = b"".join(map(archive.read, archive.namelist()))
    assert str(tmp_path).encode() not in everything
    assert b"train/workloads.py" not in everything
    assert b"workloads.py" in everything
    assert "command" not in meta_of(tmp_path / "run.vram")
    recording = vramlens.load(tmp_path / "run.vram")
    assert recording.peak().by_line[0].place.file == "workloads.py"


def test_children_that_are_spawned_are_recorded_forked_ones_are_not(tmp_path: Path) -> None:
    text = PLUG_IN + (
        "import multiprocessing, os\n"
        "def work(rank, use):\n"
        "    os.environ['RANK'] = str(rank)\n"
        "    import torch\n"
        "    from vramlens.capture import torch_api\n"
        "    if use: torch_api.connect().use()\n"
        "if __name__ == '__main__':\n"
        "    import torch\n"
        "    gpu.use()\n"
        "    for method, ranks in (('spawn', ((1, True), (2, False))), ('fork', ((3, False),))):\n"
        "        for arguments in ranks:\n"
        "            child = multiprocessing.get_context(method).Process(target=work, args=arguments)\n"
        "            child.start(); child.join(); assert child.exitcode == 0\n"
    )
    answer = run_program(tmp_path, text, "-o", "run.vram")
    assert answer.returncode == 0, answer.stderr
    assert recordings(tmp_path) == [
        "run-rank00001.vram",
        "run-rank00001.vram.summary",
        "run.vram",
    ]


def test_a_running_program_can_be_asked(tmp_path: Path) -> None:
    text = USES_GPU + (
        "import signal, time\n"
        "print('ready', flush=True)\n"
        "while not __import__('os').path.exists('stop'): time.sleep(0.05)\n"
    )
    (tmp_path / "train.py").write_text(text)
    environment = {"PYTHONPATH": PYTHON_PATH, "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "vramlens", "run", "-o", "run.vram", "train.py"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        asked = [sys.executable, "-m", "vramlens", "dump", str(process.pid)]
        answers = [
            subprocess.run(
                [*asked, *more],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            for more in ([], ["-o", "now.vram"], ["-o", "train.py/now.vram"])
        ]
        assert [answer.stdout for answer in answers] == [
            f"{tmp_path}/run.vram\n",
            f"{tmp_path}/now.vram\n",
            "",
        ]
        assert answers[2].returncode == 3
        assert answers[2].stderr.startswith(f"vramlens: process {process.pid}: ")
        (tmp_path / "run.vram").unlink()
        process.send_signal(signal.SIGUSR2)
        for _ in range(100):
            if (tmp_path / "run.vram").exists():
                break
            time.sleep(0.05)
        assert meta_of(tmp_path / "run.vram")["trigger"] == "signal"
    finally:
        (tmp_path / "stop").write_text("")
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0
    assert errors.count("wrote") == 4  # two asked for, one signal, the end
    after = subprocess.run(
        [*asked], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "it may have ended" in after.stderr


def test_the_handler_of_the_program_stays(tmp_path: Path) -> None:
    text = PLUG_IN + (
        "import os, signal, torch\n"
        "signal.signal(signal.SIGUSR2, lambda *_: print('mine'))\n"
        "gpu.use(); os.kill(os.getpid(), signal.SIGUSR2)\n"
    )
    assert run_program(tmp_path, text).stdout == "mine\n"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("9:12", "after 2 steps and never reached steps 9:12"),
        ("1:9", "after 2 steps, before steps 1:9 were complete"),
    ],
)
def test_steps_that_never_come_are_told(tmp_path: Path, steps: str, said: str) -> None:
    answer = run_program(
        tmp_path, STEPS.format(steps=2), "--profile", "--steps", steps, "-o", "traces"
    )
    assert answer.returncode == 0
    assert said in answer.stderr
    assert (tmp_path / "traces").exists() == (steps == "1:9")


def test_a_signal_before_the_gpu_is_used_does_not_end_the_program(tmp_path: Path) -> None:
    answer = run_program(
        tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); print('alive')"
    )
    assert answer.stdout == "alive\n"
    assert "no recording: the program has not used a GPU yet" in answer.stderr


def test_a_profiler_trace_of_some_steps(tmp_path: Path) -> None:
    answer = run_program(
        tmp_path, STEPS.format(steps=5), "--profile", "--steps", "1:3", "-o", "traces", RANK="2"
    )
    assert answer.returncode == 0, answer.stderr
    (trace,) = (tmp_path / "traces/rank00002").iterdir()
    assert trace.name.endswith(".pt.trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"aten::linear", "ProfilerStep#1", "[memory]"} <= names
    assert sum(event.get("name") == "Optimizer.step#SGD.step" for event in events) == 2


_STEPS_ON_THREADS = (
    "import torch, threading\n"
    "m = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), 0.1)\n"
    "def step(): o.zero_grad(); m(torch.ones(2, 4)).sum().backward(); o.step()\n"
    "def on_a_thread(): t = threading.Thread(target=step); t.start(); t.join()\n"
)


@pytest.mark.parametrize(
    "steps",
    [
        "step()\nfor _ in range(5): on_a_thread(); step()\n",
        "for _ in range(5): on_a_thread()\n",
    ],
    ids=["begins on the main thread", "begins on one that ends"],
)
def test_a_profiler_ends_on_its_own_thread(tmp_path: Path, steps: str) -> None:
    answer = run_program(
        tmp_path, f"{_STEPS_ON_THREADS}{steps}", "--profile", "--steps", "1:4", "-o", "traces"
    )
    assert answer.returncode == 0, answer.stderr
    assert "vramlens: wrote " in answer.stderr
