"""Which variable to set: one for a version of PyTorch."""

from dataclasses import replace
from pathlib import Path

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.failure.oom import settings_variable
from vramlens.capture.alloc_conf import _RULES
from vramlens.ground.conf_text import (
    NEWER_KEYS,
    OTHER_KEYS,
    SIMULATED_KEYS,
    installed_variable,
    variable_of,
)
from vramlens.recovery.comparing.strategy_kinds import STRATEGIES
from vramlens.replay.settings import SettingsError, parse_settings
from vramlens.trace import Meta

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
RECORDING = DATA / "captured/oom_forward.vram"


@pytest.mark.parametrize(
    ("version", "variable"),
    [
        ("2.8.0+cu126", OLD),
        ("2.9.0", NEW),
        ("2.13.0+cpu", NEW),
        ("3.0", NEW),
        ("?", OLD),
        (None, OLD),
    ],
)
def test_the_variable_is_the_one_that_the_version_surely_reads(
    version: str | None, variable: str
) -> None:
    assert variable_of(version) == variable
    trace = load(RECORDING)
    bare = replace(trace, torch_version=version, meta=Meta())
    assert settings_variable(bare) == variable


def test_the_variable_that_the_run_had_set_is_kept() -> None:
    trace = load(RECORDING)
    meta = replace(trace.meta, environment={NEW: "", OLD: "max_split_size_mb:64"})
    assert settings_variable(replace(trace, torch_version="2.13.0", meta=meta)) == OLD


def refusal_of(conf: str) -> str:
    """What PyTorch says of settings that it refuses; "" of others."""
    try:
        parse_settings(conf)
    except SettingsError as error:
        return str(error)
    return ""


def test_doctor_and_replay_know_the_same_keys() -> None:
    assert set(_RULES) == {*SIMULATED_KEYS, *OTHER_KEYS}
    assert "Unrecognized key" in refusal_of("another:1")
    for key in (*SIMULATED_KEYS, *OTHER_KEYS, *NEWER_KEYS):
        assert "Unrecognized key" not in refusal_of(f"{key}:1")


def test_a_strategy_sets_the_variable_of_the_installed_version() -> None:
    assert STRATEGIES["expandable"].edit.startswith(f"{installed_variable()}=")


def test_only_one_module_names_the_variables_to_set() -> None:
    source = Path(__file__).parents[2] / "src/vramlens"
    for path in (*source.glob("recovery/**/*.py"), *source.glob("report/**/*.py")):
        assert f'"{NEW}=' not in path.read_text(encoding="utf-8") or path.name == "drill.py"
