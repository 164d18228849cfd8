"""The debug switches: every one says what it costs, and the bundle holds cheap ones only."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from vramlens.capture.doctor import switches
from vramlens.capture.doctor.switches import SWITCHES, debug_bundle, switch

DOCS = Path(__file__).parents[3] / "docs" / "switches.md"


@pytest.mark.parametrize("one", SWITCHES, ids=lambda one: one.name)
def test_every_switch_says_all_of_it(one: switches.Switch) -> None:
    for text in (one.value, one.default, one.does, one.when, one.cost, one.source):
        assert text.strip() == text != ""
    assert one.weight in ("cheap", "slow", "changes memory")
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+", one.name)
    assert not re.search(r"\d\s*(%|x\b|times)", one.cost), "no invented figures"


def test_no_name_is_there_twice() -> None:
    names = [name for one in SWITCHES for name in (one.name, *one.older)]
    assert len(names) == len(set(names))


def test_the_bundle_is_cheap_and_never_blocks_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "_torch_version", lambda: (2, 13))
    bundle = debug_bundle({})
    assert bundle == {
        "TORCH_SHOW_CPP_STACKTRACES": "1",
        "TORCH_DISABLE_ADDR2LINE": "1",
        "PYTHONFAULTHANDLER": "1",
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "NCCL_DEBUG": "WARN",
    }
    assert all(switch(name).weight == "cheap" for name in bundle)


def test_what_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "NCCL_DEBUG" not in debug_bundle({"NCCL_DEBUG": "INFO"})
    assert "PYTHONFAULTHANDLER" not in debug_bundle({"PYTHONFAULTHANDLER": ""})
    # Under its older name it is set too: both would have PyTorch warn.
    assert "TORCH_FR_BUFFER_SIZE" not in debug_bundle({"TORCH_NCCL_TRACE_BUFFER_SIZE": "10"})


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ((2, 7), "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ((2, 8), "TORCH_FR_BUFFER_SIZE"),
        (None, "TORCH_FR_BUFFER_SIZE"),
    ],
)
def test_the_flight_recorder_by_the_name_that_the_version_reads(
    version: tuple[int, int] | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "_torch_version", lambda: version)
    assert {key for key in debug_bundle({}) if "BUFFER_SIZE" in key} == {name}


@pytest.mark.parametrize(("text", "version"), [("2.13.0+cpu", (2, 13)), ("nonsense", None)])
def test_the_version_comes_from_the_metadata(
    text: str, version: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: text)
    assert switches._torch_version() == version


def test_present_value_and_json() -> None:
    one = switch("NCCL_ASYNC_ERROR_HANDLING")
    assert one.name == "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert one.present({"NCCL_ASYNC_ERROR_HANDLING": "1"}) == ("NCCL_ASYNC_ERROR_HANDLING", "1")
    data = one.to_dict({})
    assert data["present"] is data["set_as"] is None
    assert data["in_debug_bundle"] is False
    with pytest.raises(KeyError):
        switch("NO_SUCH_SWITCH")


def test_the_page_names_every_switch() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for one in SWITCHES:
        assert f"`{one.name}={one.value}`" in page
        assert one.cost in page
        assert one.source in page
