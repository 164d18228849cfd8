"""Every verb, integration and public function where no extra and no PyTorch is installed: it works,
or it says in one line what to install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.installed import PYTHON_PATH
from support.recordings import DATA

ABSENT = [
    "accelerate",
    "distributed",
    "duckdb",
    "lightning",
    "mlflow",
    "opentelemetry",
    "prometheus_client",
    "pytorch_lightning",
    "ray",
    "tensorboard",
    "textual",
    "torch",
    "transformers",
    "wandb",
]
GPT, LEAK = (str(DATA / "recordings" / f"{name}.pickle.xz") for name in ("gpt", "leak_outputs"))
DDP = [str(DATA / "ranks" / "ddp" / f"ddp.rank{rank}.pickle.xz") for rank in (0, 1)]
WORK = [
    ["explain", GPT],
    ["leaks", GPT],
    ["view", GPT, "-o", "page.html"],
    ["replay", GPT],
    ["tune", GPT],
    ["diff", GPT, LEAK],
    ["check", GPT, "--update"],
    ["ranks", *DDP],
    ["export", GPT, "--to", "csv"],
    ["export", GPT, "--to", "perfetto"],
    ["top", "--once"],
    ["doctor"],
]
REFUSED = [
    (["export", GPT, "--to", "parquet"], "vramlens[fleet]"),
    (["export", GPT, "--to", "tensorboard"], "vramlens[tensorboard]"),
    (["export", *DDP, "--to", "lake/"], "vramlens[fleet]"),
    (["ranks", *DDP, "--workers", "dask://127.0.0.1:1"], "vramlens[cluster]"),
    (["top", "--prometheus", ":0"], "vramlens[prometheus]"),
    (["top", "--otel"], "vramlens[otel]"),
    (["predict", "train.py"], "PyTorch"),
    (["dump", "999999999"], "999999999"),
]
INTEGRATIONS = [
    ("from vramlens.integrations.prometheus import serve; serve(0)", "vramlens[prometheus]"),
    ("from vramlens.integrations.opentelemetry import instrument; instrument()", "vramlens[otel]"),
]
FUNCTIONS = [
    "vramlens.install()",
    "vramlens.memory()",
    "vramlens.holders()",
    "vramlens.who_holds(object())",
    "vramlens.release(ValueError())",
    "vramlens.step()",
    "vramlens.snapshot('now.vram')",
    "vramlens.distributed_state()",
    "vramlens.LeakWatch().step()",
    "vramlens.Monitor(quiet=True).sample()",
    "vramlens.BalancedBatchSampler([1, 2], 1)",
    "vramlens.predict(dict, dict, dict, dict, batch=1)",
    "vramlens.guard(MODEL)",
    "vramlens.find_batch_size(MODEL, dict, dict)",
    "vramlens.plan(MODEL, dict, dict, budget=1, batch=1)",
    "vramlens.place(MODEL, 1)",
    "vramlens.strategies(dict, dict, dict, dict, batch=1)",
    "vramlens.AdaptiveBatchLoader([1], '1GiB')",
    "vramlens.guard_trainer(object())",
]
PROGRAM = """
import contextlib, io, json, sys, types
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import vramlens
from vramlens.cli.main import main
MODEL = types.SimpleNamespace(named_parameters=lambda: [], parameters=lambda: iter(()))
answers = []
for words in VERBS:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except BaseException as error:
            code = repr(error)
    answers.append([code, err.getvalue()])
for code in CODES:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            exec(code)
        except BaseException as error:
            answers.append([type(error).__name__, str(error)])
        else:
            answers.append([0, err.getvalue()])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, str]]:
    """By verb's words or code: exit code or error, and what was said."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "train.py").write_text("print('runs')\n")
    verbs = [*WORK, *(words for words, _ in REFUSED)]
    codes = [*(code for code, _ in INTEGRATIONS), *FUNCTIONS]
    head = f"ABSENT, VERBS, CODES = {ABSENT!r}, {verbs!r}, {codes!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + PROGRAM],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        check=True,
    )
    names = [*(" ".join(words) for words in verbs), *codes]
    return dict(zip(names, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("words", WORK, ids=" ".join)
def test_what_needs_no_extra_works(
    words: list[str], answers: dict[str, tuple[object, str]]
) -> None:
    code, said = answers[" ".join(words)]
    assert code == 0, said


@pytest.mark.parametrize(
    ("name", "hint"),
    [*((" ".join(words), hint) for words, hint in REFUSED), *INTEGRATIONS],
)
def test_what_needs_one_says_which_in_one_line(
    name: str, hint: str, answers: dict[str, tuple[object, str]]
) -> None:
    code, said = answers[name]
    assert code in (2, 3, "UsageError"), said
    assert hint in said
    assert said.strip().count("\n") == 0


@pytest.mark.parametrize("code", FUNCTIONS)
def test_a_public_function_works_or_says_what_is_missing(
    code: str, answers: dict[str, tuple[object, str]]
) -> None:
    outcome, said = answers[code]
    assert outcome in (0, "UsageError", "InputError", "ModuleNotFoundError", "TypeError")
    if outcome == "TypeError":
        assert " takes " in said
    if outcome == "ModuleNotFoundError":
        assert "torch" in said
    assert said.strip().count("\n") == 0
