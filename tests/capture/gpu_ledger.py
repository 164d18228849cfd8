"""The ledger of a real GPU. Run by hand, where torch and nvidia-ml-py are: pytest is not needed.

PYTHONPATH=src python tests/capture/gpu_ledger.py
python -m pytest -q -s tests/capture/gpu_ledger.py
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from vramlens.capture.memory.device_ledger import Ledger, ledger, ledgers
from vramlens.capture.memory.driver import Driver, driver, own_pids
from vramlens.capture.memory.memory_now import memory
from vramlens.units import GIB, MIB, format_size

with contextlib.suppress(ImportError):
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    ]

FRESH = """
import torch
from vramlens.capture.memory.driver import driver, own_pids
from vramlens.capture.memory.memory_now import memory
now = memory()
assert now.gpus and not torch.cuda.is_initialized(), now
assert all(gpu.total_bytes and not gpu.has_context for gpu in now.gpus), now
nvml, _ = driver()
pids, sees_host_pids = own_pids()
for gpu in nvml.gpus():
    listed = {process.pid for process in nvml.memory(gpu).processes or ()}
    assert not (sees_host_pids and listed & set(pids)), "asking has made a context"
torch.ones(1, device="cuda")
after = memory()
assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in now.gpus], "numbered otherwise before CUDA"
print("fresh: ok")
"""
OTHER = """
import sys, torch
held = torch.ones(1 << 30, dtype=torch.uint8, device=f"cuda:{sys.argv[1]}")
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
"""


def nvml() -> Driver:
    found, reason = driver()
    assert found is not None, reason
    return found


def show(found: Ledger) -> None:
    for row in found.rows:
        print(
            f"  {row.kind:20} {row.bytes:>15,} {format_size(row.bytes):>12} {row.confidence:9} {row.note}"
        )
    print("  notes:", found.notes, " processes:", found.processes)


def rows(found: Ledger) -> dict[str, int]:
    return {row.kind: row.bytes for row in found.rows}


@contextlib.contextmanager
def another_process(device: int) -> Iterator[subprocess.Popen[str]]:
    pipe: Any = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(device)], stdin=pipe, stdout=pipe, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate("\n", timeout=60)


def test_asking_makes_no_context() -> None:
    """In a fresh process, and before anything here uses the GPU."""
    print(
        subprocess.run(
            [sys.executable, "-c", FRESH], check=True, capture_output=True, text=True
        ).stdout
    )


def test_rows_sum_to_the_drivers_total_and_equal_memory_stats() -> None:
    held = [torch.empty(200 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
    del held[::2]  # so that there is a cache
    torch.ones(512, 512, device="cuda") @ torch.ones(
        512, 512, device="cuda"
    )  # cuBLAS's handle and workspace
    torch.cuda.synchronize()
    index = torch.cuda.current_device()
    found, stats = ledger(), torch.cuda.memory_stats(index)
    print()
    print(memory())
    show(found)
    import pynvml

    uuid = f"GPU-{str(torch.cuda.get_device_properties(index).uuid).removeprefix('GPU-')}"
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    older = pynvml.nvmlDeviceGetMemoryInfo(handle)
    print(f"  v2: total {info.total:,} reserved {info.reserved:,} free {info.free:,} used {info.used:,}; "
          f"v1: free {older.free:,} used {older.used:,}")  # fmt: skip
    print(
        f"  v2 used counts the reserved part: {info.used + info.free > info.total - info.reserved}"
    )
    print(
        f"  cudaMemGetInfo (free, total): {torch.cuda.mem_get_info(index)}, driver {nvml().version()}, {own_pids()}"
    )
    assert found.uuid == uuid
    assert found.total_bytes == info.total == sum(row.bytes for row in found.rows)
    kinds = rows(found)
    assert kinds["pytorch_allocated"] == stats["allocated_bytes.all.current"] >= 1000 * MIB
    assert (
        kinds["pytorch_allocated"] + kinds["pytorch_cached"] == stats["reserved_bytes.all.current"]
    )
    assert kinds["pytorch_cached"] >= 800 * MIB
    assert abs(kinds["free"] - torch.cuda.mem_get_info(index)[0]) < 64 * MIB
    assert kinds["driver_reserved"] == info.reserved
    if own_pids()[1]:
        assert 100 * MIB < kinds["this_process_other"] < 2 * GIB
        assert kinds.get("unknown", 0) < 512 * MIB
        confidences = {row.kind: row.confidence for row in found.rows}
        assert {confidences[kind] for kind in kinds if kind != "unknown"} == {"exact"}
    else:
        assert kinds.get("this_process_other", kinds.get("outside_pytorch", 0)) > 100 * MIB


def test_another_process_shows_up() -> None:
    torch.ones(1, device="cuda")
    index = torch.cuda.current_device()
    before = ledger(index)
    with another_process(index) as process:
        during = ledger(index)
        show(during)
        sees_host_pids = own_pids()[1]
        kind = "other_processes" if sees_host_pids else "outside_pytorch"
        grown = rows(during).get(kind, 0) - rows(before).get(kind, 0)
        if sees_host_pids:
            assert GIB < grown < 3 * GIB, grown
            note = next(row.note for row in during.rows if row.kind == kind)
            assert str(process.pid) in note, note
        used = sum(size for name, size in rows(during).items() if name != "free")
        assert used - sum(size for name, size in rows(before).items() if name != "free") >= GIB
        assert sum(row.bytes for row in during.rows) == during.total_bytes
    assert (
        all(listed.pid != process.pid for listed in ledger(index).processes) or not sees_host_pids
    )


def test_other_devices_get_no_context() -> None:
    torch.ones(1, device="cuda")
    before = [torch._C._cuda_hasPrimaryContext(index) for index in range(torch.cuda.device_count())]
    found = ledgers()
    memory()
    assert [
        torch._C._cuda_hasPrimaryContext(index) for index in range(torch.cuda.device_count())
    ] == before
    assert [gpu.has_context for gpu in found] == before
    assert all(gpu.total_bytes == sum(row.bytes for row in gpu.rows) for gpu in found)


def test_a_call_is_quick_and_does_not_wait() -> None:
    torch.ones(1, device="cuda")
    ledger()
    took = []
    for _ in range(50):
        begun = time.perf_counter()
        ledger()
        took.append(time.perf_counter() - begun)
    print(f"  ledger(): median {sorted(took)[25] * 1e3:.2f} ms, slowest {max(took) * 1e3:.2f} ms")
    assert sorted(took)[25] < 5e-3
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # about two seconds of work in the queue
    ledger()
    memory()
    assert not torch.cuda.current_stream().query(), "the ledger has waited for the GPU"
    torch.cuda.synchronize()


def test_during_a_graph_capture() -> None:
    """Asking does not break a capture, nor does the capture break the answer."""
    x = torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x * 2
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        found = ledger()
    graph.replay()
    torch.cuda.synchronize()
    assert float(y[0]) == 2
    assert sum(row.bytes for row in found.rows) == found.total_bytes
    show(ledger())


if __name__ == "__main__":
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(f"== {name}", flush=True)
            try:
                test()
            except Exception as error:
                failed += 1
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
                print(getattr(error, "stderr", "") or "")
    print(f"{failed} failed (pid {os.getpid()})")
    sys.exit(bool(failed))
