"""What comes next after a failure whose need is a range or unknown."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.explanation import Explanation
from vramlens.report.explain.predicted_step import script_words, step_to_predict
from vramlens.report.explain.story import next_command
from vramlens.trace import Meta

SCRIPT = "/home/user/train/lora_llama.py"


@cache
def explained(name: str) -> Explanation:
    return load(DATA / "failures" / f"{name}.vram").explain()


def of(**changed: Any) -> Explanation:
    """A failure in a first step, of another recording."""
    explanation = explained("lora_llama.cap90")
    meta = explanation.recording.meta
    recording = replace(explanation.recording, meta=replace(meta, **changed))
    return replace(explanation, recording=recording)


@pytest.mark.parametrize("name", ["lora_llama.cap90", "matern_gp.cap90", "linattn_doc_lm.cap50"])
def test_a_range_or_nothing_known_leads_to_the_script_predicted(name: str) -> None:
    script = f"/home/user/train/{name.split('.')[0]}.py"
    command = next_command(explained(name))
    assert command.lines == (f"vramlens predict --gpu h100 {script}",)
    assert command.why == "predict the peak of the whole run, without a GPU"


@pytest.mark.parametrize(
    ("name", "verb"), [("gpt.cap90", "view"), ("gpt.cap97", "tune"), ("search_loop.cap70", "view")]
)
def test_what_is_known_already_is_not_predicted(name: str, verb: str) -> None:
    assert next_command(explained(name)).lines[0].startswith(f"vramlens {verb} ")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"command": ("train.py", "--batch", "8")}, " --gpu h100 train.py -- --batch 8"),
        ({"command": ("train.py", "8")}, " --gpu h100 train.py 8"),
        ({"command": ("/usr/bin/python3.12", "-u", "train.py")}, " --gpu h100 train.py"),
        ({"command": ("python", "-X", "dev", "my run.py")}, " --gpu h100 'my run.py'"),
        ({"device_name": "NVIDIA H200"}, f" {SCRIPT}"),
        ({"device_name": "NVIDIA A100-SXM4-40GB"}, f" --gpu a100-40 {SCRIPT}"),
        ({"device_name": None}, f" {SCRIPT}"),
        ({"world_size": 8, "rank": 0}, f" --gpu h100 --world-size 8 {SCRIPT}"),
        ({"world_size": 8, "rank": 3}, f" --gpu h100 --world-size 8 --rank 3 {SCRIPT}"),
        ({"world_size": 1, "rank": 0}, f" --gpu h100 {SCRIPT}"),
    ],
)
def test_the_command_is_that_of_the_recorded_program(changed: dict[str, Any], words: str) -> None:
    command = step_to_predict(of(**changed))
    assert command is not None
    assert command.lines == (f"vramlens predict{words}",)


@pytest.mark.parametrize(
    "command",
    [
        (),  # redacted
        ("python", "-c", "import train"),
        ("python", "-m", "train"),
        ("-m", "train"),
        ("python", "-cimport train"),
        ("python", "-m", "ipykernel_launcher", "-f", "kernel.json"),
        ("/site-packages/ipykernel_launcher.py", "-f", "kernel.json"),
        ("/site-packages/colab_kernel_launcher.py",),
        ("/site-packages/train/__main__.py",),
        ("pytest", "tests/test_train.py"),
        ("python",),
        ("vramlens", "predict", "train.py"),
        ("train.ipynb",),
    ],
)
def test_without_a_script_nothing_is_predicted(command: tuple[str, ...]) -> None:
    assert step_to_predict(of(command=command)) is None
    assert "predict" not in next_command(of(command=command)).lines[0]


def test_no_meta_no_script() -> None:
    explanation = explained("lora_llama.cap90")
    without = replace(explanation.recording, meta=Meta())
    assert step_to_predict(replace(explanation, recording=without)) is None
    assert script_words(Meta()) == []
