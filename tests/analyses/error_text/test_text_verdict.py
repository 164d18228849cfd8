"""What an out-of-memory text proves, and that it never claims more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramlens.analyses.error_text.message_sums import least_request
from vramlens.analyses.error_text.text_headline import OPENING
from vramlens.analyses.error_text.text_verdict import TextVerdict, explain_message
from vramlens.analyses.finding import Finding
from vramlens.analyses.recording_explanation import explain_text
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import Wall
from vramlens.read.oom.oom_text import find_oom_messages
from vramlens.units import GIB, MIB, format_size

CORPUS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "oom_messages.json").read_text("utf-8")
)
SMALL = (
    "CUDA out of memory. Tried to allocate 58.00 MiB. GPU 0 has a total capacity of 3.71 GiB of which"
    " 57.00 MiB is"
    " free. Including non-PyTorch memory, this process has 3.64 GiB memory in use. Of the allocated"
    " memory 3.51 GiB"
    " is allocated by PyTorch, and 74.06 MiB is reserved by PyTorch but unallocated."
)
SHORT = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.32 GiB of which"
    " 401.56 MiB"
    " is free."
)
OTHERS = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 31.36 GiB of which"
    " 2.62 MiB is"
    " free. Process 81034 has 30.57 GiB memory in use. Including non-PyTorch memory, this process has"
    " 784.00 MiB"
    " memory in use. Of the allocated memory 179.69 MiB is allocated by PyTorch, and 12.31 MiB is reserved by"
    " PyTorch but unallocated."
)
CONTAINER = (
    "CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 44.34 GiB of which"
    " 160.81 MiB"
    " is free. Process 47694 has 44.17 GiB memory in use. Of the allocated memory 43.36 GiB is allocated"
    " by PyTorch,"
    " and 396.27 MiB is reserved by PyTorch but unallocated."
)
LIMIT = (
    "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which"
    " 133.32 GiB"
    " is free. Including non-PyTorch memory, this process has 2.64 GiB memory in use. 2.00 GiB allowed;"
    " Of the"
    " allocated memory 1.98 GiB is allocated by PyTorch, and 1.78 MiB is reserved by PyTorch but unallocated."
)


def verdict(text: str) -> TextVerdict:
    (message,) = find_oom_messages(text.encode())
    return explain_message(message)


def finding(found: TextVerdict, slug: str) -> Finding:
    return next(one for one in found.findings if one.id == slug)


def test_one_mebibyte_short_and_holes_of_unknown_size() -> None:
    found = verdict(SMALL)
    assert (found.wall, found.cause, found.short_by_bytes) == ("device", None, MIB)
    assert found.headline.startswith(OPENING)
    assert found.headline.endswith(": 1.00 MiB short.")
    assert found.expandable_segments == "undecided"
    hint = finding(found, "expandable_segments")
    assert hint.verdict == "possible"
    assert "74.06 MiB is in free blocks of unknown size" in hint.title
    outside = next(row for row in found.ledger if row.kind == "this_process_other")
    assert outside.confidence == "inferred"
    assert abs(outside.bytes - 59 * MIB) < 12 * MIB
    assert "about 59" in finding(found, "outside_pytorch").title


def test_the_short_form_gives_the_shortage_and_says_what_it_lacks() -> None:
    found = verdict(SHORT)
    assert found.headline.endswith(": 110.44 MiB short.")
    assert found.short_by_bytes == round(512 * MIB) - round(401.56 * MIB)
    assert (found.wall, found.cause, found.expandable_segments) == ("device", None, None)
    assert any("how much PyTorch had reserved" in unknown for unknown in found.unknowns)
    assert {row.kind for row in found.ledger} == {"free", "unknown"}


def test_a_bare_error_says_what_was_tried_and_what_to_do() -> None:
    found = verdict("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert found.headline == "Out of memory: tried to allocate 2.00 GiB."
    assert "pass the whole log" in (finding(found, "no_figures").fix or "")


def test_under_a_limit_memory_outside_pytorch_is_no_advice() -> None:
    found = verdict(LIMIT)
    assert found.wall == "process_limit"
    assert "outside_pytorch" not in {one.id for one in found.findings}


def test_another_process_holds_the_device() -> None:
    found = verdict(OTHERS)
    assert found.wall == "other_process"
    assert "81034" in found.headline
    assert finding(found, "other_process").verdict == "proven"


def test_in_a_container_the_only_listed_process_is_this_one() -> None:
    found = verdict(CONTAINER)
    assert found.wall == "device"
    assert any("container" in unknown for unknown in found.unknowns)
    assert (
        next(row for row in found.ledger if row.kind == "this_process_other").confidence
        == "inferred"
    )


def test_the_process_limit_is_the_wall_and_the_hint_is_refuted() -> None:
    found = verdict(LIMIT)
    assert found.wall == "process_limit"
    assert found.short_by_bytes is not None
    assert (
        abs(found.short_by_bytes - 44 * MIB) <= found.short_slack_bytes
    )  # 2028 MiB were reserved of 2048
    assert found.expandable_segments == "refuted"


def test_enough_free_without_a_limit_is_not_explained_away() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.99 GiB of"
        " which 7.72 GiB is free."
    )
    found = verdict(text)
    assert (found.wall, found.short_by_bytes) == ("unknown", None)
    assert "The GPU had 7.72 GiB free, yet" in found.headline


def test_more_live_than_the_device_has_makes_no_ledger() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 3.74 GiB. GPU 0 has a total capacity of 4.00 GiB of which"
        " 0 bytes is"
        " free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the"
        " allocated"
        " memory 16.20 GiB is allocated by PyTorch, and 844.14 MiB is reserved by PyTorch but unallocated."
    )
    found = verdict(text)
    assert found.ledger == ()
    assert finding(found, "oversubscribed").verdict == "proven"


def test_a_request_larger_than_the_device_is_said_to_be_so() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 56.00 GiB. GPU 1 has a total capacity of 23.56 GiB of"
        " which 20.66 GiB is free."
    )
    found = verdict(text)
    assert finding(found, "request_too_large").verdict == "proven"


@pytest.mark.parametrize("case", CORPUS, ids=[case["name"] for case in CORPUS])
def test_every_wording_gets_a_sound_verdict(case: dict[str, Any]) -> None:
    found = verdict(case["text"])
    check(found)
    kind = case["expect"]["kind"]
    assert (found.wall == "host") == (kind == "host" or "host alloc" in case["text"])
    if kind == "triton":
        assert found.findings[0].verdict == "not a problem"


def test_an_error_wrapped_inside_words_gives_the_same_verdict() -> None:
    wrapped = "\n".join("  " + LIMIT[at : at + 80] for at in range(0, len(LIMIT), 80))
    assert verdict(wrapped) == verdict(LIMIT)


def test_an_error_that_breaks_off_states_no_shortage() -> None:
    at_limit = verdict(LIMIT[: LIMIT.index(" Of the")])
    assert at_limit.wall == "process_limit"
    assert "64.00 MiB. Most likely this process's limit of 2.00 GiB refused it" in at_limit.headline
    at_driver = verdict(SMALL[: SMALL.index("non-PyTorch")])
    assert at_driver.headline.endswith(": at least 1.00 MiB short.")
    assert finding(at_driver, "device_full").verdict == "likely"
    unexplained = verdict(LIMIT[: LIMIT.index("2.00 GiB allowed")] + "2.0")
    assert "end of the message is missing" in unexplained.headline
    for found in (at_limit, at_driver, unexplained):
        assert found.short_by_bytes is None
        assert "The end of the message is missing" in found.unknowns[0]
    assert not any("missing" in unknown for unknown in verdict(LIMIT).unknowns)


def test_the_advice_says_the_headline_s_number_and_its_rounding() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 1.29 GiB. GPU 0 has a total capacity of 79.32 GiB of which 1.00 GiB is"
        " free."
    )
    found = verdict(text)
    assert found.headline.endswith(": about 296.96 MiB short.")
    fix = finding(found, "device_full").fix or ""
    assert fix.startswith(
        "use 296.96 MiB less (up to 307.20 MiB with the rounding of the printed numbers)"
    )


@pytest.mark.parametrize(
    ("text", "slug", "verdict_is", "words"),
    [
        ("RuntimeError: CUDA error: out of memory", "driver_memory", "likely", "empty_cache"),
        (
            "CUBLAS_STATUS_ALLOC_FAILED when calling",
            "library_memory",
            "likely",
            "set_per_process_memory_fraction",
        ),
        (
            "CUBLAS_STATUS_NOT_INITIALIZED when calling",
            "library_memory",
            "possible",
            "CUDA_LAUNCH_BLOCKING",
        ),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "library_memory", "likely", "empty_cache"),
        (
            "Out of memory while trying to allocate 33762398024 bytes.",
            "jax_memory",
            "likely",
            "PREALLOCATE=false",
        ),
        (
            "OOM when allocating tensor with shape[64,64]",
            "tensorflow_memory",
            "likely",
            "ALLOW_GROWTH",
        ),
        (
            "No available memory for the cache blocks.",
            "vllm_memory",
            "likely",
            "gpu_memory_utilization",
        ),
        ("Failed to CUDA calloc 536870912 bytes", "nccl_memory", "likely", "NCCL_BUFFSIZE"),
        ("CUDA out of memory", "no_figures", "possible", "vramlens run"),
    ],
)
def test_what_allocates_outside_pytorch_gets_a_fix(
    text: str, slug: str, verdict_is: str, words: str
) -> None:
    one = finding(verdict(text), slug)
    assert one.verdict == verdict_is
    assert words in (one.fix or "")


@pytest.mark.parametrize("case", CORPUS, ids=[case["name"] for case in CORPUS])
def test_every_wording_gets_a_fix_and_says_nothing_twice(case: dict[str, Any]) -> None:
    found = verdict(case["text"])
    assert any(one.fix for one in found.findings) or case["name"] == "mps without limit"
    assert found.headline not in [one.title for one in found.findings]


def test_the_kernel_s_words_name_the_process_and_what_it_held() -> None:
    text = "Memory cgroup out of memory: Killed process 23793 (python) total-vm:2623712kB, anon-rss:506500kB"
    killed = finding(verdict(text), "oom_killer")
    assert killed.bytes == 506500 * 1024
    assert "23793 (python), which held 494.63 MiB: the limit of its container" in killed.title


def test_a_bus_error_in_a_worker_is_shared_memory() -> None:
    text = "RuntimeError: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory"
    found = verdict(text + " (shm).")
    assert (found.wall, found.findings[0].id) == ("host", "shared_memory")
    assert "--shm-size" in (found.findings[0].fix or "")


def check(found: TextVerdict) -> None:
    assert found.wall in set(Wall)
    assert found.cause is None
    assert found.headline
    assert "\n" not in found.headline
    assert found.unknowns
    assert all(
        row.bytes > 0 and row.confidence in ("exact", "inferred", "unknown") for row in found.ledger
    )
    assert all(
        one.verdict in tuple(Verdict) and (one.bytes is None or one.bytes >= 0)
        for one in found.findings
    )
    hints = [one for one in found.findings if one.id == "expandable_segments"]
    if found.expandable_segments == "undecided":
        assert [hint.verdict for hint in hints] == ["possible"]


@st.composite
def devices(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    """A message whose true figures sum up, and those figures."""
    step = 2 * MIB
    live, holes, outside = (draw(st.integers(0, 40 * GIB)) // 512 * 512 for _ in range(3))
    free, driver = (draw(st.integers(0, 4 * GIB)) for _ in range(2))
    others = draw(st.lists(st.integers(1, 20 * GIB), max_size=3))
    tried = draw(st.integers(1, 20_000)) * step
    allowed = draw(st.none() | st.integers(GIB, 100 * GIB))
    total = live + holes + outside + free + driver + sum(others)
    processes = "".join(
        f"Process {pid} has {format_size(size)} memory in use. " for pid, size in enumerate(others)
    )
    limit = f"{format_size(allowed)} allowed; " if allowed is not None else ""
    text = (
        f"CUDA out of memory. Tried to allocate {format_size(tried)}. GPU 0 has a total capacity of"
        f" {format_size(total)} of which {format_size(free)} is free. {processes}Including non-PyTorch"
        f" memory, this"
        f" process has {format_size(live + holes + outside)} memory in use. {limit}Of the allocated memory"
        f" {format_size(live)} is allocated by PyTorch, and {format_size(holes)} is reserved by PyTorch but"
        " unallocated."
    )
    true = {"live": live, "holes": holes, "free": free, "others": sum(others), "tried": tried}
    return text, true | ({"allowed": allowed} if allowed is not None else {})


@settings(max_examples=400)
@given(devices())
def test_claims_hold_for_the_true_figures_behind_the_rounding(
    case: tuple[str, dict[str, int]],
) -> None:
    text, true = case
    (message,) = find_oom_messages(text.encode())
    found = explain_message(message)
    check(found)
    assert sum(row.bytes for row in found.ledger) == message.total_bytes
    room = min(true.get("allowed", 1 << 60), true["live"] + true["holes"] + true["free"])
    if found.expandable_segments == "refuted":
        assert true["live"] + least_request(message) > room
    if found.wall == "other_process":
        assert (
            true["free"]
            < true["tried"]
            <= true["free"] + true["others"] + message.slack("tried_bytes")
        )
    if found.short_by_bytes is not None and found.wall in ("device", "other_process"):
        assert abs(found.short_by_bytes - (true["tried"] - true["free"])) <= found.short_slack_bytes
    if found.wall == "process_limit":
        slack = message.slack("reserved_bytes", "allowed_bytes", "tried_bytes")
        assert true["live"] + true["holes"] + true["tried"] > true["allowed"] - 2 * slack


def test_shared_failures_give_the_wall_that_was_hit() -> None:
    folder = Path(__file__).parents[4] / "shared" / "data"
    files = [
        path
        for path in sorted(folder.glob("**/*.json"))
        if '"oom_message"' in path.read_text("utf-8")
    ]
    if not files:
        pytest.skip("the shared recordings are not beside this checkout")
    for path in files:
        found = verdict(json.loads(path.read_text("utf-8"))["oom_message"])
        check(found)
        assert found.wall == "process_limit", path
        assert found.short_by_bytes is not None, path
        assert found.ledger, path


def _found(text: str, slug: str) -> Any:
    return next((one for one in verdict(text).findings if one.id == slug), None)


NO_HOLES = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 4.00 GiB of"
    " which 2.80 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch"
    " but unallocated."
)
HIP_LIMIT = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of"
    " which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, and"
    " 54.99 MiB is reserved by PyTorch but unallocated."
)
NINE = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 24.00 MiB. GPU 0 has a total capacity of 23.69 GiB"
    " of which 23.31 MiB is free. Process 1 has 5.59 GiB memory in use. Process 2 has 9.22 GiB memory in use. Process 3"
    " has 8.82 GiB memory in use. Of the allocated memory 348.82 MiB is allocated by PyTorch, and 39.18 MiB is reserved"
    " by PyTorch but unallocated."
)
ROUNDED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of"
    " which 12.73 GiB is free. Including non-PyTorch memory, this process has 18.73 GiB memory in use. Of the allocated"
    " memory 9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated."
)


def test_where_nothing_lies_in_holes_no_setting_is_advised() -> None:
    assert _found(NO_HOLES, "expandable_segments") is None
    assert "vramlens top" in _found(NO_HOLES, "free_but_refused").fix


def test_a_likely_limit_comes_with_how_to_raise_it_and_the_platforms_own_setting() -> None:
    assert (
        _found(HIP_LIMIT, "process_limit").fix
        == "raise set_per_process_memory_fraction by 2.00 MiB or more; that is for this request"
        " alone: the rest of the step may need more, and only a recording shows how much"
    )
    assert _found(HIP_LIMIT, "unnamed_memory") is None
    assert (
        _found(HIP_LIMIT, "expandable_segments").fix
        == "try PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"
    )


@pytest.mark.parametrize(("text", "slug"), [(LIMIT, "process_limit"), (ROUNDED, "device_full")])
def test_a_text_s_advice_says_that_it_is_for_one_request(text: str, slug: str) -> None:
    assert (finding(verdict(text), slug).fix or "").endswith(
        "; that is for this request alone: the rest of the step may need more, and only a"
        " recording shows how much"
    )


def test_processes_that_the_text_names_are_not_unnamed() -> None:
    rows = {row.kind: row.bytes for row in verdict(NINE).ledger}
    assert rows["outside_pytorch"] > 23 * GIB > GIB > rows.get("unknown", 0)


def test_a_rest_within_the_rounding_is_called_that() -> None:
    (row,) = [row for row in verdict(ROUNDED).ledger if row.kind == "unknown"]
    assert row.note == "the rounding of the printed numbers"
    assert "rounding" not in _found(ROUNDED, "device_full").fix  # 0.1% of it


def holes(
    tried: str,
    live: str,
    unallocated: str,
    *,
    before: str = "",
    limit: str = "",
    free: str = "1.20 GiB",
) -> str:
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 1 has a total capacity of 79.10 GiB of which {free} is"
        f" free. {before}{limit}Of the allocated memory {live} is allocated by PyTorch, and {unallocated} is"
        " reserved by PyTorch but unallocated."
    )


def test_many_bytes_in_no_tensor_are_the_likely_cause_and_come_first() -> None:
    (message,) = find_oom_messages(holes("2.00 GiB", "60.12 GiB", "16.10 GiB").encode())
    found = explain_message(message)
    assert found.headline == (
        "Out of memory: tried to allocate 2.00 GiB. 16.10 GiB reserved by PyTorch is not in use: likely fragmentation, or memory cached for another pool or stream. The GPU was 819.20 MiB short."
    )
    assert (found.cause, found.expandable_segments) == (
        None,
        "undecided",
    )  # likely is not proven, nor promised
    first = explain_text(message, "train.log").findings[0]
    assert (first.id, first.verdict, first.bytes) == (
        "expandable_segments",
        "possible",
        message.unallocated_bytes,
    )
    limited = verdict(
        holes("512.00 MiB", "1.00 GiB", "1.50 GiB", limit="2.60 GiB allowed; ", free="70.00 GiB")
    )
    assert limited.wall == "process_limit"
    assert "likely fragmentation" in limited.headline
    assert "over this process" not in limited.headline


@pytest.mark.parametrize(
    "text",
    [
        holes("132.00 MiB", "70.12 GiB", "765.81 MiB", free="98.00 MiB"),  # six times, but what any run leaves
        holes("2.00 GiB", "8.12 GiB", "3.10 GiB"),  # less than twice
        holes("2.00 GiB", "60.12 GiB", "16.10 GiB", free="2.20 GiB"),  # the driver had it
        holes("2.00 GiB", "20.12 GiB", "16.10 GiB", before="Process 7 has 40.00 GiB memory in use. Including non-PyTorch"
              " memory, this process has 37.00 GiB memory in use. "),
    ],
)  # fmt: skip
def test_otherwise_the_headline_stays_with_the_shortage(text: str) -> None:
    found = verdict(text)
    assert found.likely_holes_bytes is None
    assert "fragmentation" not in found.headline.lower()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("./run.sh: line 3: 4711 Killed                  python train.py\n", "the machine"),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks "
            "have been OOM Killed.\n",
            "sbatch --mem",
        ),
    ],
)
def test_a_killed_process_is_told_where_host_memory_is_limited(text: str, where: str) -> None:
    found = verdict(text)
    fix = finding(found, "oom_killer").fix or ""
    assert where in fix
    assert "fewer DataLoader workers" in fix
    assert found.unknowns == (
        "A killed process prints no traceback, so the line of the program is unknown.",
    )
