"""Tuning a recording that ends in a failure: it says what explain says, and what really lived."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from rich.console import Console

from support.documents import print_answer
from support.recordings import DATA
from vramlens import load
from vramlens.replay import Tuning, tune_trace
from vramlens.report.replay.json import tuning_to_json
from vramlens.units import format_size

FULL_CARD = """import torch

layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
batch = torch.randn(50_000, 1024, device="cuda")
words = torch.randn(16_000, 1024, device="cuda")
logits = torch.nn.functional.linear(layers(batch), words)
torch.nn.functional.cross_entropy(
    logits, torch.zeros(50_000, dtype=torch.int64, device="cuda")
).backward()
"""
"""What is alive and the logits are more than 4 GiB; they alone are not."""
FOLDER = DATA / "failures"
TRUTH: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text())
NAMES = sorted(path.stem for path in FOLDER.glob("*.vram"))
LEAK = DATA / "recordings/oom_leak.pickle.xz"


@cache
def tuned(name: str) -> Tuning:
    return tune_trace(load(FOLDER / f"{name}.vram"))


def story(tuning: Tuning) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_answer(tuning, console)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def outcome(name: str, conf: str) -> str | None:
    """What really came of the run with a setting; None where that was not tried."""
    truth = TRUTH[name.split(".")[0]]["limits"][name]
    known: str | None = truth.get(conf) or truth.get("replayed", {}).get(conf)
    return known


@pytest.mark.parametrize("name", NAMES)
def test_no_setting_that_dies_is_the_one_to_use(name: str) -> None:
    tuning = tuned(name)
    text = story(tuning)
    confs = [row.row.settings.conf for row in tuning.tried]
    dying = [conf for conf in confs if outcome(name, conf) == "dies"]
    assert not any(text.startswith(f"Use {conf}:") for conf in dying)
    assert "use this setting" not in text or text.startswith("Use ")


@pytest.mark.parametrize("name", NAMES)
def test_the_setting_is_the_one_that_explain_advises_first(name: str) -> None:
    findings = load(FOLDER / f"{name}.vram").explain().findings
    advice = [row for row in findings if row.id in ("settings_help", "settings_may_help")]
    best = tuned(name).best
    if tuned(name).leaked_per_step is not None:
        assert best is None  # none helps for long
        assert not any(row.id == "settings_help" for row in findings)
        assert findings[0].id == "leak"
        return
    if not advice:
        assert best is None
        return
    assert best is not None
    assert advice[0].title.startswith(f"{best.row.settings.conf} ")
    assert story(tuned(name)).startswith("Use ") == (advice[0].id == "settings_help")


def test_what_only_gets_past_the_request_is_said_so() -> None:
    text = story(tuned("gpt.cap90"))
    assert text.startswith(
        "expandable_segments:True gets past this request only; the step still fails later"
        " (`vramlens explain` says why)."
    )
    assert "fails later" in text
    assert (
        "Next, allow 3.14 GiB, or see what could be smaller; gaps included, this step needs"
        " 2.04 GiB, at most 2.09 GiB:"
    ) in text


@pytest.mark.parametrize("name", ["gpt.cap90", "hand_lora.cap75", "vaegan.cap85"])
def test_the_limit_to_allow_is_that_of_explain(name: str) -> None:
    """The low end of a range would fail again."""
    explanation = load(FOLDER / f"{name}.vram").explain()
    assert explanation.oom is not None
    advice = explanation.oom.limit
    assert advice is not None
    assert advice.bytes is not None
    fix = next(row.fix for row in explanation.findings if row.id == "process_limit")
    size = format_size(advice.bytes)
    least = "at least " if advice.is_least else ""
    assert fix is not None
    assert fix.startswith(f"raise this process's limit to {least}{size} ")
    assert advice.needs in fix
    next_step = story(tuned(name)).split("Next, ")[1]
    assert next_step.startswith(f"allow {least}{size}, or see what could be smaller; ")
    assert advice.needs in next_step


def test_data_tells_what_follows_the_failed_request() -> None:
    answer = tuning_to_json(tuned("gpt.cap90"))
    assert answer["best"] is None
    expandable = next(row for row in answer["what_if"] if row["conf"] == "expandable_segments:True")
    assert expandable["past_failure"] is True
    assert expandable["step_finishes"] is False


def test_no_setting_or_limit_helps_a_leak() -> None:
    tuning = tune_trace(load(LEAK))
    text = story(tuning)
    assert text.startswith(
        "This run leaks 196.42 MiB per step; no setting or limit helps for long."
    )
    assert f"vramlens leaks {LEAK}" in text
    assert "use a limit" not in text
    assert tuning_to_json(tuning)["leaked_per_step"] == tuning.leaked_per_step


def test_of_another_limit_only_the_failed_request_is_known() -> None:
    text = story(tune_trace(load(FOLDER / "gpt.cap90.vram"), cap_bytes=1_990_000_000))
    assert not text.startswith("Use ")


@pytest.fixture(scope="module")
def full_card(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """The tuning of a predicted run on a card that is too small, whatever the settings."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("full")
    (folder / "train.py").write_text(FULL_CARD)
    options = ["--cards", "4GiB", "-o", str(folder / "run.vram"), str(folder / "train.py")]
    subprocess.run(
        [sys.executable, "-m", "vramlens", "predict", *options],
        capture_output=True,
        check=True,
        timeout=300,
    )
    return tune_trace(load(folder / "run.oom.vram"))


def test_where_no_allocator_can_serve_the_need_every_setting_fails(full_card: Tuning) -> None:
    assert full_card.no_setting_can_help
    assert all(row.fails for row in full_card.tried)
    text = story(full_card)
    assert text.startswith("No setting helps under the limit of the recorded run: the run fails")
    assert "unknown" not in text


def test_what_a_full_card_could_reserve_has_the_same_figure_throughout(full_card: Tuning) -> None:
    text = story(full_card)
    exceeds = re.search(r"That exceeds ([0-9.]+ GiB), so no setting can help", text)
    can_have = re.search(r"this process can have ([0-9.]+ GiB):", text)
    assert exceeds is not None
    assert can_have is not None
    assert exceeds[1] == can_have[1]


def test_what_may_fit_a_full_card_is_not_ruled_out() -> None:
    """What was free at the failure could have been reserved, too: the need lies below that."""
    tuning = tune_trace(load(DATA / "captured/oom_really_full.vram"))
    limit = tuning.recorded.limit
    assert limit.bytes is not None
    assert tuning.recorded.peak_reserved_bytes < tuning.floor_bytes < limit.bytes
    assert not tuning.no_setting_can_help
    assert "so no setting can help" not in story(tuning)


def test_what_may_not_get_past_the_request_fails_in_its_step() -> None:
    tuning = tuned("accumulate.cap80")
    undecided = [row for row in tuning.tried if row.row.oom is None and not row.row.past_failure]
    assert undecided
    assert all(row.fails for row in undecided)
    text = story(tuning)
    assert "unknown" not in text
    assert "step fails: at the failed request, or at a later one of the step" in text


@pytest.mark.parametrize("name", ["accumulate.cap80", "curriculum_len.cap50"])
def test_a_range_has_no_change_beside_it(name: str) -> None:
    text = story(tuned(name))
    assert re.search(r"[0-9] to [0-9.]+ [KMG]iB", text)
    assert not re.search(r"[0-9] to [0-9.]+ [KMG]iB (?:none|[-+][0-9])", text)
