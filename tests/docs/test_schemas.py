"""What ``--json`` prints, held against the JSON Schemas of docs/schema: nothing else, nothing less."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.recordings import DATA
from vramlens.capture.memory.memory_now import HostMemory
from vramlens.cli.main import main
from vramlens.fleet import export_lake
from vramlens.monitor.machine.machine import DeviceNow, MachineNow, ProcessNow
from vramlens.monitor.top.watching import JsonLines
from vramlens.recovery.comparing.strategy_row import StrategyRow
from vramlens.recovery.comparing.strategy_table import StrategyTable

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
RECORDINGS = DATA / "recordings"
GPT = RECORDINGS / "gpt.pickle.xz"
LEAK = RECORDINGS / "leak_outputs.pickle.xz"
FAILED = RECORDINGS / "oom_leak.pickle.xz"
DDP = DATA / "ranks" / "ddp"
LEAK_ON_ONE = DATA / "ranks" / "leak_rank1"
LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
QUESTIONS = [
    ("explain", ["explain", FAILED, "--total", "80GiB"]),
    ("explain", ["explain", DATA / "captured" / "oom_really_full.vram"]),
    ("explain", ["explain", "train.log"]),
    ("leaks", ["leaks", LEAK, "--total", "80GiB"]),
    ("leaks", ["leaks", DATA / "captured" / "steps.vram"]),
    ("replay", ["replay", GPT, "--conf", "expandable_segments:True", "--cap", "1GiB"]),
    ("replay", ["tune", GPT, "--cards", "1GiB,24GiB"]),
    ("diff", ["diff", LEAK, GPT]),
    ("diff", ["diff", DDP, LEAK_ON_ONE]),
    ("check", ["check", LEAK, "--budget", "vram.toml"]),
    ("check", ["check", LEAK_ON_ONE, "--budget", "vram.toml"]),
    ("ranks", ["ranks", DDP / "ddp.rank0.pickle.xz", DDP / "ddp.rank1.pickle.xz"]),
    ("ranks", ["explain", *sorted((DATA / "ranks" / "desync").glob("*.nccl.pickle.xz"))]),
    ("profile", ["explain", DATA / "profiler" / "train.json.gz"]),
    ("doctor", ["doctor"]),
    ("top", ["top"]),
]
DEPENDS_ON_THE_MACHINE = ("doctor", "top")
TRIED_BY_THEMSELVES = {"query", "top_line", "strategies", "attach"}
"""Below; an attach by tests/attach/test_attach.py."""


def schema_of(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return schema


def closed(schema: Any) -> Any:
    """A schema that allows no key which it does not name: users may get more, we may not forget."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(part) for key, part in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        parts["additionalProperties"] = False
    return parts


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a log and a budget."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "vram.toml").write_text('[budget]\npeak_allocated = "1 GiB"\ngrowth_per_step = 0\n')
    return tmp_path


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_a_schema_is_one(path: Path) -> None:
    Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_every_schema_is_in_the_page_and_tried() -> None:
    names = {path.stem for path in SCHEMAS.glob("*.json")}
    page = (SCHEMAS.parent / "json.md").read_text(encoding="utf-8")
    assert names == {name for name, _ in QUESTIONS} | TRIED_BY_THEMSELVES
    assert [name for name in names if f"schema/{name}.json" not in page] == []


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "words"), QUESTIONS, ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_an_answer_is_what_its_schema_says(name: str, words: list[object]) -> None:
    schema = schema_of(name)
    if name not in DEPENDS_ON_THE_MACHINE:
        schema = closed(schema)
    with redirect_stdout(io.StringIO()) as printed:
        main([str(word) for word in (*words, "--json")])
    assert errors_of(schema, json.loads(printed.getvalue())) == [], (
        "a new key is described in docs/schema and docs/json.md"
    )


def errors_of(schema: Any, answer: Any) -> list[str]:
    return [
        f"{error.json_path}: {error.message[:200]}"
        for error in Draft202012Validator(schema).iter_errors(answer)
    ]


@pytest.mark.parametrize(
    "question",
    [
        ["--ask", "worst-lines"],
        ["--sql", "SELECT * FROM runs, ranks"],
        ["--sql", "SELECT * FROM ranks WHERE false"],
    ],
)
def test_an_answer_of_a_lake_is_what_its_schema_says(
    question: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    export_lake([DDP], str(tmp_path / "lake"), "r1")
    assert main(["ranks", str(tmp_path / "lake"), *question, "--json"]) == 0
    assert errors_of(closed(schema_of("query")), json.loads(capsys.readouterr().out)) == []


def test_a_line_of_top_is_what_its_schema_says(tmp_path: Path) -> None:
    devices = (DeviceNow("0", processes=(ProcessNow(4711, None),)), DeviceNow("1"))
    lines = JsonLines(str(tmp_path / "gpu.jsonl"))
    for number in range(3):
        lines.take(MachineNow(1, devices[:number], HostMemory()))
    lines.close()
    for line in (tmp_path / "gpu.jsonl").read_text().splitlines():
        assert errors_of(closed(schema_of("top_line")), json.loads(line)) == []


def test_a_table_of_strategies_is_what_its_schema_says() -> None:
    row = StrategyRow("default", "done", "", 1, 2, 3.0, 0.1, 0.0, None, 1, True, "all", "", True)
    failed = replace(row, outcome="failed", peak_allocated_bytes=None, step_ms=None)
    schema = closed(schema_of("strategies"))
    for budget in (None, 1):
        table = StrategyTable((row, failed), budget, None, "predicted", 1, 2)
        assert errors_of(schema, table.to_json()) == []
