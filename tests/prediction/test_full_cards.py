"""Where a predicted program runs out of a card's memory, beside what is known of the program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vramlens
from vramlens import api
from vramlens.analyses.explanation import Explanation
from vramlens.prediction.full_cards.card_failure import card_failure
from vramlens.prediction.full_cards.card_watch import CardWatch, Room
from vramlens.prediction.requests.request_log import ALLOCATE, FREE, RequestLog
from vramlens.prediction.requests.served_requests import first_refused
from vramlens.prediction.tensors.known_values import KnownValues
from vramlens.trace import WholeRunMeta

torch = pytest.importorskip("torch")
MIB = 1 << 20
DOCS = Path(__file__).parents[2] / "docs"

KEEPS_OUTPUTS = """import torch

model = torch.nn.Linear(256, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept_outputs = []
for step in range(30):
    batch = torch.randn(16384, 256, device="cuda")
    output = model(batch)
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    kept_outputs.append(output.detach())
"""
"""Each step keeps the 64 MiB of its output: what the last ones ask for is too much for 1.5 GiB."""
OUTPUT_LINE = 8


def predict(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vramlens", "predict", *options, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def explained(path: Path) -> Explanation:
    explanation = api.explain(str(path))
    assert isinstance(explanation, Explanation)
    return explanation


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A prediction for two cards that are too small, and the paths that it wrote."""
    folder = tmp_path_factory.mktemp("full")
    script = folder / "train.py"
    script.write_text(KEEPS_OUTPUTS)
    options = ("--cards", "1GiB,1536MiB,24GiB", "-o", str(folder / "run.vram"), "--json")
    done = predict(script, *options)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return {**answer["prediction"], "answer": answer, "folder": folder}


def test_the_largest_card_that_is_too_small_fails_where_it_is_full(written: dict[str, Any]) -> None:
    failure = written["failure"]
    assert [card["fits"] for card in written["cards"]] == [False, False, True]
    assert failure["oom"]["wall"] == "device"
    assert failure["oom"]["tried_bytes"] in (16 * MIB, 64 * MIB)
    # What is alive and what was asked for is more than the card has beside the CUDA context.
    in_use = failure["oom"]["allocated_bytes"] + failure["oom"]["tried_bytes"]
    assert 1024 * MIB < in_use < 1536 * MIB


def test_the_answer_is_what_its_schema_says(written: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((DOCS / "schema" / "explain.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(written["answer"])
    described = schema["properties"]["prediction"]["properties"]
    assert {"failure", "own_limit"} <= described.keys()


def test_what_fills_the_card_has_the_programs_names(written: dict[str, Any]) -> None:
    largest = written["failure"]["heap"]["by_line"][0]
    assert largest["line"] == OUTPUT_LINE
    with zipfile.ZipFile(written["folder"] / "run.oom.vram") as archive:
        names = {tensor["name"] for tensor in json.loads(archive.read("names.json"))["tensors"]}
    assert {"model.weight", "optimizer.exp_avg[model.weight]", "kept_outputs[0]", "batch"} <= names
    first = written["failure"]["findings"][0]
    assert first["id"] == "leak"
    assert "64.00 MiB per step" in first["title"]


def test_the_failure_is_a_recording_beside_the_whole(written: dict[str, Any]) -> None:
    whole = explained(written["folder"] / "run.vram")
    failure = explained(written["folder"] / "run.oom.vram")
    assert whole.oom is None
    assert failure.failure is not None
    text = subprocess.run(
        [sys.executable, "-m", "vramlens", "explain", str(written["folder"] / "run.oom.vram")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert text.startswith("A card of 1.50 GiB would run out of memory: tried to allocate")


def test_a_limit_of_the_programs_own_is_obeyed(tmp_path: Path) -> None:
    limit = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.01)\n"
    script = tmp_path / "train.py"
    script.write_text(KEEPS_OUTPUTS.replace("import torch\n", limit))
    prediction = json.loads(predict(script, "--json").stdout)["prediction"]
    assert prediction["own_limit"]["fits"] is False
    assert prediction["failure"]["oom"]["limit_bytes"] == prediction["own_limit"]["total_bytes"]
    text = predict(script).stdout
    assert "does not fit: the limit that the script sets itself, 1.4" in text
    assert "\nWithin its limit of 1.4" in text


DEEP_NETWORK = """import torch

torch.cuda.set_per_process_memory_fraction({fraction})
blocks = [torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU()) for _ in range(8)]
model = torch.nn.Sequential(*(layer for block in blocks for layer in (block, torch.nn.Linear(2048, 512)))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    loss = model(torch.randn({rows}, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def predicted_network(folder: Path, fraction: str, rows: int) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(DEEP_NETWORK.format(fraction=fraction, rows=rows))
    done = predict(script, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_the_whole_run_needs_is_known_at_its_failure(tmp_path: Path) -> None:
    """The limit, and the smaller batch, that the answer names carry the run; a little less does not."""
    rows, fraction = 16384, 0.0075
    answer = predicted_network(tmp_path, str(fraction), rows)
    failure = answer["prediction"]["failure"]
    need = failure["oom"]["need"]
    assert need["basis"] == "whole_run"
    assert need["peak_reserved_bytes"] == answer["peak"]["reserved_bytes"]
    assert (need["low_bytes"], need["high_bytes"]) == tuple(
        answer["prediction"][f"{end}_bytes"] for end in ("low", "high")
    )
    assert need["floor_bytes"] <= answer["peak"]["allocated_bytes"]
    fixes = {finding["id"]: finding["fix"] for finding in failure["findings"]}
    named = re.search(r"set_per_process_memory_fraction\(([\d.]+)\)", fixes["process_limit"])
    assert named is not None
    raised = predicted_network(tmp_path, named[1], rows)["prediction"]
    assert raised["own_limit"]["fits"] is True
    assert raised["failure"] is None
    low, high = re.findall(r"fits is ([\d.]+)x to ([\d.]+)x", fixes["smaller_batch"])[0]
    fits = [
        predicted_network(tmp_path, str(fraction), int(rows * share))["prediction"]["own_limit"][
            "fits"
        ]
        for share in (float(low), float(high) + 0.05)
    ]
    assert fits == [True, False]


def test_the_predicted_card_itself_may_be_too_small(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    lines = ("import torch", "kept = []", "for _ in range(40):")
    script.write_text("\n".join((*lines, "    kept.append(torch.zeros(1 << 30, device='cuda'))")))
    failure = json.loads(predict(script, "--json").stdout)["prediction"]["failure"]
    assert failure["oom"]["tried_bytes"] == 4 << 30
    assert 135 << 30 < failure["oom"]["allocated_bytes"] < 140 << 30
    assert "kept" in failure["findings"][0]["title"]


def test_what_fits_has_no_failure(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(KEEPS_OUTPUTS)
    prediction = json.loads(predict(script, "--cards", "24GiB", "--json").stdout)["prediction"]
    assert prediction["failure"] is None
    assert prediction["own_limit"] is None


def test_functions_have_a_failure_too(tmp_path: Path) -> None:
    prediction = vramlens.predict(
        lambda: torch.nn.Linear(256, 1024),
        lambda n: torch.randn(n, 256, device="cuda"),
        lambda model, batch: model(batch).mean(),
        batch=1 << 20,
        cards=["2GiB"],
    )
    assert prediction.failure is not None
    assert prediction.failure.meta["oom"]["requested_bytes"] == (1 << 20) * 1024 * 4
    path = tmp_path / "failure.vram"
    prediction.write_failure(str(path), redact=True)
    assert explained(path).failure is not None


KEEPS_CHECKPOINT = """import torch
torch.cuda.set_per_process_memory_fraction(600 * 2**20 / torch.cuda.get_device_properties(0).total_memory)
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
del model, optimizer, parameter

checkpoint = torch.load("last.pt", map_location="cuda")
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6)))
model.load_state_dict(checkpoint["model"])
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def test_what_a_checkpoint_left_is_known_by_its_load(tmp_path: Path) -> None:
    """``torch.load`` is another function here, and stands in the stacks all the same."""
    script = tmp_path / "train.py"
    script.write_text(KEEPS_CHECKPOINT)
    command = [sys.executable, "-m", "vramlens", "predict", "train.py", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    first = json.loads(done.stdout)["prediction"]["failure"]["findings"][0]
    assert first["id"] == "kept_checkpoint"
    assert first["bytes"] == pytest.approx(3 * 6 * 2048 * 2049 * 4, rel=0.01)


KEEPS_SLICES = """import torch

limit = 1100 * 2**20
torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
contexts = {}


@torch.no_grad()
def serve(numbers):
    window = torch.randn(64, 64, 2048, device="cuda")
    window = torch.cat([window, window], dim=-1)
    last = window[..., -8:]
    for place, number in enumerate(numbers):
        contexts[number] = last[place]
    return window.square().mean()


for batch in range(80):
    serve(range(64 * batch, 64 * batch + 64))
"""
"""Each batch leaves slices that keep 64 MiB: when 1,100 MiB are full, most of what they will keep is to come."""


def test_who_keeps_what_grows_comes_first_whatever_is_missing_in_the_end(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(KEEPS_SLICES)
    done = predict(script, "-o", str(tmp_path / "run.vram"), "--json")
    failure = json.loads(done.stdout)["prediction"]["failure"]
    first = failure["findings"][0]
    assert first["id"] == "kept_in_store"
    assert first["verdict"] == "likely"
    assert ".clone()" in first["fix"]
    assert "not enough alone" not in first["fix"]


def test_without_a_failure_none_is_written(tmp_path: Path) -> None:
    prediction = vramlens.predict(
        lambda: torch.nn.Linear(8, 8),
        lambda n: torch.randn(n, 8, device="cuda"),
        lambda model, batch: model(batch).mean(),
        batch=2,
    )
    with pytest.raises(ValueError, match="no failure"):
        prediction.write_failure(str(tmp_path / "failure.vram"))
    assert not list(tmp_path.iterdir())


def watch_of(log: RequestLog, rooms: list[Room]) -> CardWatch:
    return CardWatch(log, KnownValues(log), rooms, card_bytes=1 << 40, root_names={})


def log_of(sizes_mib: list[int]) -> RequestLog:
    log = RequestLog()
    for size in sizes_mib:
        log.allocate(size * MIB)
    return log


def test_each_room_is_full_once_with_the_request_that_is_too_much() -> None:
    log = RequestLog()
    rooms = [Room(size * MIB, size * MIB) for size in (30, 10, 100)]
    watch = watch_of(log, rooms)
    watch.limit_itself(200 * MIB)
    watch.limit_itself(15 * MIB)  # the last one holds
    for _ in range(4):
        log.allocate(8 * MIB)
    assert [(full.room.total_bytes // MIB, full.row) for full in watch.full_cards] == [
        (10, 1),
        (15, 1),
        (30, 3),
    ]
    assert [full.room.is_own_limit for full in watch.full_cards] == [False, True, False]


def test_the_snapshot_before_a_request_has_the_blocks_that_live_then() -> None:
    log = log_of([4, 30, 6])
    log.free(1)
    log.allocate(60 * MIB)
    log.free(0)  # later
    earlier = log.first_rows(3)
    assert earlier.events == [(ALLOCATE, 0), (ALLOCATE, 1), (ALLOCATE, 2), (FREE, 1)]
    assert earlier.sizes == [4 * MIB, 30 * MIB, 6 * MIB]
    refused = first_refused(log, 3, "", "2.11", 66 * MIB)
    assert refused is not None
    assert refused.row == 3
    live = {
        block["address"]: block["requested_size"]
        for segment in refused.snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert live == {refused.addresses[0]: 4 * MIB, refused.addresses[2]: 6 * MIB}


def test_gaps_have_an_earlier_request_refused() -> None:
    """20 MiB are cached between blocks that live: the next 30 MiB are too much before all that is alive is."""
    log = log_of([20, 20, 20])
    log.free(1)
    log.allocate(30 * MIB)
    log.allocate(30 * MIB)
    refused = first_refused(log, 4, "", "2.11", 70 * MIB)
    assert refused is not None
    assert refused.row == 4
    log = log_of([1] * 40)  # of two segments of 20 MiB
    for row in range(1, 40, 2):
        log.free(row)
    log.allocate(30 * MIB)
    log.allocate(30 * MIB)
    refused = first_refused(log, 41, "", "2.11", 60 * MIB)
    assert refused is not None
    assert refused.row == 40


LEAVES_GAPS = """import torch

MIB = 1 << 20
tensors = [torch.empty(8 * MIB, dtype=torch.uint8, device="cuda") for _ in range(300)]
del tensors[::2]  # each segment of 20 MiB keeps one of two
table = torch.empty(1000 * MIB, dtype=torch.uint8, device="cuda")
"""


def test_a_card_that_only_gaps_make_too_small_has_a_failure_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVES_GAPS)
    done = predict(script, "--cards", "3500MiB,8GiB", "--json")
    assert done.returncode == 0, done.stderr
    prediction = json.loads(done.stdout)["prediction"]
    assert [card["fits"] for card in prediction["cards"]] == [False, True]
    failure = prediction["failure"]
    assert failure["oom"]["requested_bytes"] == 1000 * MIB
    assert failure["oom"]["line"] == 6
    assert failure["oom"]["cause"] == "fragmentation"
    need = failure["oom"]["need"]
    free_bytes = failure["oom"]["reserved_bytes"] + failure["oom"]["free_bytes"]
    assert need["floor_bytes"] < free_bytes < need["peak_reserved_bytes"]


def test_a_first_request_that_is_too_much_has_an_empty_past() -> None:
    log = log_of([500])
    assert first_refused(log, 0, "", "2.11", 600 * MIB) is None
    refused = first_refused(log, 0, "", "2.11", 100 * MIB)
    assert refused is not None
    assert refused.row == 0
    assert refused.snapshot["segments"] == []
    assert refused.snapshot["device_traces"] == [[]]
    assert refused.addresses == {}


def test_the_step_is_that_of_the_refused_request() -> None:
    """Not that of the moment at which names are noted, which may be another."""
    log = RequestLog()
    watch = watch_of(log, [Room(70 * MIB, 70 * MIB)])
    for _ in range(4):
        log.allocate(30 * MIB)
    (full_card,) = watch.full_cards
    meta = {"devices": {"0": {"name": "H200", "total_bytes": 1 << 40}}, "torch": "2.11"}
    for row, step_rows, step in ((2, [0, 2], 2), (2, [0, 3], 1), (3, [0, 3], 2)):
        failure = card_failure(
            log,
            replace(full_card, row=row, room=Room((row * 30 + 10) * MIB, (row * 30 + 10) * MIB)),
            meta,
            step_rows=step_rows,
            whole_run=WholeRunMeta(1000 * MIB, 900 * MIB, 1100 * MIB, 900 * MIB),
            conf="",
            outside_bytes=0,
        )
        assert failure is not None
        assert failure.meta["step"] == step


def test_a_workspace_that_is_refused_fails_nothing() -> None:
    log = RequestLog()
    rooms = [Room(50 * MIB, 50 * MIB)]
    watch = watch_of(log, rooms)
    log.allocate(30 * MIB)
    log.scratch(40 * MIB)
    assert not watch.full_cards
    log.allocate(30 * MIB)
    assert [full.row for full in watch.full_cards] == [2]


LETS_GO = """import torch


class Node:
    pass


def train():
    for step in range(6):
        node, other = Node(), Node()
        node.other, other.node = other, node  # only the collector lets go of them
        node.batch = torch.randn(24 << 20, device="cuda")
        result = node.batch * 2
        del result
        result = node.batch + 1
        result = None


train()
"""


def test_what_is_noted_keeps_nothing_alive_and_collects_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LETS_GO)
    small_cards = ("--cards", "600MiB,700MiB,800MiB,24GiB")
    noted, plain = (
        json.loads(predict(script, *options, "--json").stdout) for options in (small_cards, ())
    )
    assert noted["prediction"]["failure"] is not None
    assert noted["peak"]["allocated_bytes"] == plain["peak"]["allocated_bytes"]


def test_an_error_while_it_is_noted_costs_the_advice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log = RequestLog()
    watch = watch_of(log, [Room(MIB, MIB), Room(5 * MIB, 5 * MIB)])
    monkeypatch.setattr(watch, "_full_card", lambda row: 1 / 0)
    for _ in range(3):
        log.allocate(2 * MIB)
    assert watch.full_cards == []
    assert log.sizes == [2 * MIB] * 3


def test_a_limit_that_is_lifted_or_comes_late_fails_nothing() -> None:
    log = RequestLog()
    watch = watch_of(log, [])
    log.free(log.allocate(30 * MIB))
    watch.limit_itself(20 * MIB)  # more had been in use
    log.allocate(25 * MIB)
    assert watch.is_limited_late
    assert not watch.full_cards
    watch.limit_itself(1 << 40)
    log.allocate(60 * MIB)
    assert watch.own_limit is None
    assert not watch.full_cards


def test_a_redacted_failure_is_a_prediction(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import functools, torch\ntorch.load = functools.partial(torch.load)\n")
    with script.open("a") as file:
        file.write("kept = torch.zeros(1 << 28, device='cuda')\nmore = kept + 1\n")
    folder = tmp_path / "out.oom.vram"
    options = ("--cards", "1500MiB", "--redact", "-o", str(tmp_path / "out.vram"))
    text = predict(script, *options).stdout
    assert "A card of 1.46 GiB would run out of memory" in text
    assert "Recorded" not in text
    assert f"written: {tmp_path / 'out.vram'}" in " ".join(text.split())
    folder.unlink()
    folder.mkdir()
    done = predict(script, *options)
    assert done.returncode == 2
    assert "is a folder" in done.stderr
