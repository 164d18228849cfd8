"""The recipes and the story's programs run, here on the CPU; PyTorch is imported once for all of
them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from vramlens.analyses.budget.budget_file import read_budget
from vramlens.cli.main import main

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SMALL = [
    "--steps",
    "4",
    "--width",
    "64",
    "--layers",
    "2",
    "--length",
    "16",
    "--batch",
    "2",
    "--words",
    "32",
]
# One process imports PyTorch; its forks run the programs, each with arguments and an environment of
# its own.
DRIVER = """
import json, os, runpy, sys, traceback
import torch, torch.distributed, torch.profiler, torch.utils.data, torch.nn.parallel
torch.set_num_threads(1)
for group in json.loads(sys.argv[1]):
    children = []
    for name, arguments, environment, output in group:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
                os.environ.update(environment)
                sys.argv = [name, *arguments]
                runpy.run_path(name, run_name="__main__")
                code = 0
            except SystemExit as done:
                code = done.code or 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0, group
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each program printed, by a name of its own."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("examples")
    groups = []
    outputs = {}

    def program(key: str, name: str, *arguments: str, **environment: str) -> list[object]:
        outputs[key] = folder / f"{key}.txt"
        return [str(EXAMPLES / name), list(arguments), environment, str(outputs[key])]

    def ranks(key: str, name: str, port: int) -> list[list[object]]:
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        return [program(f"{key}{r}", name, **job, RANK=str(r), LOCAL_RANK=str(r)) for r in (0, 1)]

    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    groups.append([program("profiler", "profiler_regions.py", str(folder / "trace.json.gz"))])
    groups.append([program("snapshot", "snapshot_of_five_steps.py")])
    groups.append(
        [program("before", "story/before.py", *SMALL), program("after", "story/after.py", *SMALL)]
    )
    groups.append(ranks("ddp", "ddp.py", ports[0]))
    groups.append(ranks("check", "all_reduce_check.py", ports[1]))
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHON_PATH,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(groups)], env=environment, check=True, timeout=600
    )
    return {key: path.read_text() for key, path in outputs.items()}


def test_profiler_with_named_regions(printed):
    assert "2 steps, " in printed["profiler"]
    assert "peak on cpu: " in printed["profiler"]
    assert "Next: vramlens explain " in printed["profiler"]


def test_snapshot_of_five_steps(printed):
    assert "no GPU here" in printed["snapshot"]
    assert "finetune.py:27 in forward" in printed["snapshot"]


def test_data_parallel_training(printed):
    assert printed["ddp0"].startswith("2 ranks on cpu, loss ")
    assert printed["ddp1"] == ""


def test_all_reduce(printed):
    assert printed["check0"] == "all_reduce is right on all 2 ranks, cpu\n"


def test_the_storys_programs(printed):
    for name in ("before", "after"):
        figures = json.loads(printed[name])
        assert figures["steps"] == 4
        assert figures["samples_per_second"] > 0


def test_the_storys_programs_differ_only_in_what_the_layer_keeps():
    before, after = (
        (EXAMPLES / "story" / f"{name}.py").read_text().splitlines() for name in ("before", "after")
    )
    assert len(before) == len(after)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert sum("self.seen" in a or '"seen"' in b for a, b in changed) == 2
    assert len(changed) == 6  # the others are words


def test_the_storys_budget_is_one():
    budget = read_budget((EXAMPLES / "story" / "vram.toml").read_bytes(), "vram.toml")
    assert [limit.scope for limit in budget.limits] == [
        "peak_allocated",
        "growth_per_step",
        "alloc_retries",
    ]


def test_the_workflow_uses_verbs_and_options_that_exist(capsys):
    text = (EXAMPLES / "workflow.yml").read_text()
    commands = re.findall(r"(?:run: |\n {10})(vramlens .*)", text)
    assert len(commands) == 3
    for command in commands:
        verb, *words = shlex.split(re.sub(r"\$\{.*?\}|>>.*", "", command))[1:]
        assert main([verb, "--help"]) == 0
        known = capsys.readouterr().out
        assert not [word for word in words if word.startswith("-") and word not in known]
    assert not re.search(r"\t", text)


def test_a_workflow_without_a_gpu_fails():
    text = (EXAMPLES / "workflow.yml").read_text()
    assert "pytest --vramlens --vramlens-require-gpu " in text


@pytest.mark.parametrize(
    "page",
    [
        path
        for folder in (EXAMPLES, EXAMPLES.parent / "docs")
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".md", ".yml", ".yaml", ".sh"}
    ],
    ids=str,
)
def test_nothing_installs_vramlens_from_an_index_that_does_not_have_it(page):
    assert not re.search(r"pip install [\"']?vramlens\b", page.read_text())


def test_a_pods_name_is_defined_and_copied_from_a_pod_that_runs():
    page = (EXAMPLES.parent / "docs" / "howto" / "kubernetes.md").read_text()
    assert "$(POD_NAME)" in page
    assert "fieldPath: metadata.name" in page
    assert re.findall(r"    kubectl cp (\w+):", page) == ["helper"]


def test_a_prolog_without_vramlens_says_so_and_leaves_nothing(tmp_path):
    said = tmp_path / "said"
    logger = tmp_path / "logger"
    logger.write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    logger.chmod(0o755)
    prolog = str(EXAMPLES / "slurm" / "prolog.sh")
    environment = {"PATH": str(tmp_path), "SLURM_JOB_ID": "4711"}
    done = subprocess.run(
        ["/bin/sh", prolog], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert said.read_text().startswith(
        "-t vramlens job 4711 is not watched: vramlens is not in PATH"
    )
    assert len(said.read_text().splitlines()) == 1
