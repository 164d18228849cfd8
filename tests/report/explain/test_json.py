"""The JSON object: the contract's keys, all of them, whatever the input."""

import json

import pytest

from support.samples import EVERY, LEAK, error_text, failed, hostile, nothing, run
from vramlens.report.explain.json import to_json

TABLES = (
    "unattributed_bytes",
    "named_bytes",
    "by_line",
    "by_code",
    "by_category",
    "category_verdicts",
    "by_phase",
    "by_module",
    "by_region",
)
KEYS = {
    "": "schema recording peak heap oom steps fragmentation leaks ledger findings",
    "recording": "source torch device events allocations complete missing settings vramlens cuda driver python platform"
    " command trigger step host pid rank local_rank world_size max_events module_marks started_us written_us"
    " dump_seconds overwritten named_tensors samples members",
    "oom": "event device count requested_bytes tried_bytes allocated_bytes reserved_bytes free_bytes"
    " largest_free_bytes limit_bytes wall cause file line function library largest_use need settings",
    "steps": "count source peak_bytes",
    "fragmentation": "event reserved_bytes free_bytes largest_free_bytes pinned_by",
}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_is_json_with_every_key(make):
    data = to_json(make())
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["schema"] == "vramlens/1"
    assert list(data) == KEYS[""].split()
    assert set(data["recording"]) == set(KEYS["recording"].split())
    assert set(data["steps"]) == set(KEYS["steps"].split())
    for part in ("oom", "fragmentation"):
        assert data[part] is None or set(data[part]) == set(KEYS[part].split())


def test_keys_of_the_peak_and_its_rows():
    data = to_json(run())
    counters = {f"{name}_bytes" for name in ("requested", "allocated", "active", "reserved")}
    assert set(data["peak"]) == {"device", "exact", "event", "step", *counters, *TABLES}
    assert set(data["heap"]) == {"at", "event", "device", "step", "requested_bytes", *TABLES}
    assert set(data["peak"]["by_line"][0]) == {
        "file",
        "line",
        "function",
        "bytes",
        "allocations",
        "names",
    }
    assert data["peak"]["by_module"][0] == {"name": "model.layers.0", "bytes": 104857600}
    assert data["peak"]["by_region"] == [{"name": "loss [eval]", "bytes": 31457280}]
    assert data["heap"]["at"] == "peak"
    assert data["fragmentation"]["pinned_by"][0] == {
        "file": None,
        "line": None,
        "bytes": 1048576,
        "blocks": 3,
    }
    finding = {"id", "verdict", "title", "bytes", "file", "line", "function", "evidence", "fix"}
    assert all(set(row) == finding for row in data["findings"])


@pytest.mark.parametrize("part", ["peak", "heap"])
def test_the_tables_sum_to_the_requested_bytes(part):
    table = to_json(run())[part]
    lines = sum(row["bytes"] for row in table["by_line"])
    assert lines + table["unattributed_bytes"] == table["requested_bytes"]
    assert sum(table["by_category"].values()) == table["requested_bytes"]
    assert sum(table["by_phase"].values()) == table["requested_bytes"]


def test_a_leak_has_the_contracts_names():
    (leak,) = to_json(run(leaks=(LEAK,)))["leaks"]
    contract = {
        "verdict": "proven", "class": None, "file": "train.py", "line": 88, "function": "loop",
        "bytes_per_step": 37748736, "bytes": 377487360, "steps": 10, "owner": None, "fix": "append loss.item()",
    }  # fmt: skip
    assert contract.items() <= leak.items()


def test_what_a_text_cannot_tell_is_null():
    data = to_json(error_text())
    assert data["peak"] is None
    assert data["heap"] is None
    assert data["fragmentation"] is None
    assert data["oom"]["event"] is None
    assert data["oom"]["cause"] is None
    assert data["oom"]["file"] is None
    assert sum(row["bytes"] for row in data["ledger"]) == 105 * 2**30


def test_settings_that_json_cannot_hold_become_null():
    assert to_json(run())["recording"]["settings"] == {"roundup": [], "limit": None}


def test_the_heap_at_another_moment_leaves_the_peak_alone():
    data = to_json(failed())
    assert data["heap"]["event"] == 950
    assert data["peak"]["event"] == 900


def test_names_arrive_unchanged():
    from support.samples import EVIL

    assert to_json(hostile())["peak"]["by_line"][0]["file"] == EVIL


def test_nothing_recorded_has_no_peak():
    assert to_json(nothing())["peak"] is None
