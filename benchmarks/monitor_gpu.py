"""The monitor against nvidia-smi and memory_stats, side by side over a run, with two processes on
one GPU.

    python benchmarks/monitor_gpu.py OUT

needs a CUDA GPU, takes about 40 seconds, prints a table and writes ``OUT/monitor_gpu.json``. The
first process trains; the second holds a block of known size. At each moment one after the other is
asked: this process's monitor, ``torch.cuda.memory_stats``, nvidia-smi and, as another program,
``vramlens top --json``. Ends with exit code 1 where figures differ that must not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

import vramlens
from vramlens.capture.recording.step_marks import StepCounter
from vramlens.monitor import Monitor
from vramlens.monitor.publisher import Publisher

MIB = 1 << 20
HELD = 3 << 30
LEAK = 8 * MIB
MOMENTS = 8
OTHER = f"""
import sys, torch
block = torch.empty({HELD}, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""


def smi(query: str, kind: str = "gpu") -> list[list[str]]:
    """Rows of nvidia-smi's answer."""
    command = ["nvidia-smi", f"--query-{kind}={query}", "--format=csv,noheader,nounits"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    return [[cell.strip() for cell in line.split(",")] for line in out.splitlines() if line.strip()]


def top() -> dict:
    """What another program sees."""
    code = "import sys; from vramlens.cli.main import main; sys.exit(main(['top', '--json']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    return json.loads(done.stdout)


def moment(monitor: Monitor) -> dict:
    """All four, one after the other, while nothing allocates."""
    torch.cuda.synchronize()
    sample = monitor.sample()
    stats = torch.cuda.memory_stats()
    uuid = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
    row = next(
        row
        for row in smi("uuid,memory.total,memory.used,memory.reserved,memory.free")
        if row[0] == uuid
    )
    processes = {
        int(pid): int(size) * MIB
        for pid, size in smi("pid,used_memory", "compute-apps")
        if size.isdecimal()
    }
    time.sleep(1.1)  # the publisher's next file
    seen = next(device for device in top()["devices"] if device["uuid"] == uuid)
    device = sample.devices[0]
    mine = next(
        (
            one
            for one in seen["processes"] or []
            if one["inside"] and one["inside"]["pid"] == os.getpid()
        ),
        None,
    )
    return {
        "monitor": {
            "total": device.total_bytes,
            "used": device.used_bytes,
            "free": device.free_bytes,
            "allocated": device.allocated_bytes,
            "reserved": device.reserved_bytes,
            "growth": device.growth_bytes,
            "steps_left": device.steps_left,
        },
        "torch": {
            "allocated": stats["allocated_bytes.all.current"],
            "reserved": stats["reserved_bytes.all.current"],
            "peak": stats["allocated_bytes.all.peak"],
        },
        "smi": {
            "total": int(row[1]) * MIB,
            "used": int(row[2]) * MIB,
            "reserved": int(row[3]) * MIB,
            "free": int(row[4]) * MIB,
            "processes": processes,
        },
        "top": {
            "used": seen["total_bytes"] - seen["free_bytes"],
            "total": seen["total_bytes"],
            "kinds": seen["kinds"],
            "processes": {one["pid"]: one["used_bytes"] for one in seen["processes"] or []},
            "inside": None if mine is None else mine["inside"],
            "pid": None if mine is None else mine["pid"],
            "is_inferred": None if mine is None else mine["is_inferred"],
        },
    }


def checks(rows: list[dict]) -> dict[str, bool]:
    """What must hold in every row."""
    found = {
        "monitor: allocated and reserved are memory_stats'": all(
            row["monitor"][key] == row["torch"][key]
            for row in rows
            for key in ("allocated", "reserved")
        ),
        "monitor: free within 64 MiB of nvidia-smi": all(
            abs(row["monitor"]["free"] - row["smi"]["free"]) <= 64 * MIB for row in rows
        ),
        "monitor: used within 64 MiB of nvidia-smi's used and reserved": all(
            abs(row["monitor"]["used"] - row["smi"]["used"] - row["smi"]["reserved"]) <= 64 * MIB
            for row in rows
        ),
        "top: the kinds sum to the total": all(
            sum(row["top"]["kinds"].values()) == row["top"]["total"] for row in rows
        ),
        "top: this process's allocator is seen": all(
            row["top"]["inside"] is not None
            and row["top"]["inside"]["allocated_bytes"] == row["torch"]["allocated"]
            and row["top"]["inside"]["reserved_bytes"] == row["torch"]["reserved"]
            for row in rows
        ),
    }
    if all(row["smi"]["processes"] for row in rows):
        found["top: each process within 2 MiB of nvidia-smi"] = all(
            abs((row["top"]["processes"].get(pid) or 0) - size) <= 2 * MIB
            for row in rows
            for pid, size in row["smi"]["processes"].items()
        )
    return found


def main() -> int:
    """Runs it."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    steps = StepCounter()
    publisher = Publisher(steps)
    publisher.start()
    kept: list[torch.Tensor] = []
    rows = []
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with Monitor(1.0, alerts=["growth > 5MiB/step"]) as monitor:
        for number in range(MOMENTS):
            for _ in range(20):
                loss = model(torch.randn(4096, 2048, device="cuda")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                kept.append(torch.empty(LEAK, dtype=torch.uint8, device="cuda"))
                monitor.step()
                steps.mark()
            if number == 3:
                assert other.stdout is not None
                assert other.stdout.readline().strip() == "ready"
            rows.append(moment(monitor))
        queue = queue_is_left_alone(monitor)
        time.sleep(5)  # at one sample a second, nothing else going on
    cost = own_cost()
    publisher.stop()
    other.communicate("")
    summary = monitor.summary()
    print(
        f"{torch.cuda.get_device_name()}, driver {top()['driver']}, torch {torch.__version__}; MiB\n"
    )
    header = (
        "allocated",
        "(torch)",
        "reserved",
        "(torch)",
        "used",
        "(smi)",
        "free",
        "(smi)",
        "top: other",
        "live",
    )
    print("  ".join(f"{word:>10}" for word in header))
    for row in rows:
        kinds = row["top"]["kinds"]
        cells = (
            row["monitor"]["allocated"], row["torch"]["allocated"], row["monitor"]["reserved"],
            row["torch"]["reserved"], row["monitor"]["used"], row["smi"]["used"] + row["smi"]["reserved"],
            row["monitor"]["free"], row["smi"]["free"], kinds["other_processes"], kinds["pytorch_allocated"],
        )  # fmt: skip
        print("  ".join(f"{cell / MIB:10,.0f}" for cell in cells))
    found = checks(rows)
    found["monitor: the planted growth of 8 MiB per step within 5%"] = any(
        alert.metric == "growth" and abs(alert.value - LEAK) < 0.05 * LEAK
        for alert in summary.alerts
    )
    found["monitor thread: under 0.1% of a core at one sample a second"] = (
        cost["monitor_share"] < 1e-3
    )
    found["file for top: under 0.1% of a core at one a second"] = cost["publisher_share"] < 1e-3
    found["the GPU's queue is left alone"] = queue["still_running"]
    print("\n" + str(summary))
    print(
        f"\nmonitor: {cost['monitor_us']:.0f} us of a core a sample; file for top: {cost['publisher_us']:.0f} us"
    )
    for what, holds in found.items():
        print(f"{'ok ' if holds else 'NOT'} {what}")
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "vramlens": vramlens.__version__,
        "rows": rows,
        "checks": found,
        "cost": cost,
        "queue": queue,
        "summary": summary.to_dict(),
    }
    (out / "monitor_gpu.json").write_text(json.dumps(result, indent=1))
    return 0 if all(found.values()) else 1


def own_cost() -> dict[str, float]:
    """Processor time of a sample and of a file, on this machine with its real driver, the first
    of each apart.
    """
    rounds = 100
    monitor, publisher = (
        Monitor(60.0),
        Publisher(StepCounter(), path=f"/dev/shm/vramlens-{os.getpid()}.inside"),
    )
    found: dict[str, float] = {}
    for name, call in (("monitor", monitor.sample), ("publisher", publisher.write)):
        call()
        began = time.thread_time()
        for _ in range(rounds):
            call()
        found[f"{name}_us"] = (time.thread_time() - began) / rounds * 1e6
        found[f"{name}_share"] = found[f"{name}_us"] / 1e6
    publisher.stop()
    return found


def queue_is_left_alone(monitor: Monitor) -> dict[str, object]:
    """Samples while a long kernel runs: none waits for it."""
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # about two seconds
    end = torch.cuda.Event()
    end.record()
    began = time.perf_counter()
    for _ in range(20):
        monitor.sample()
    seconds = time.perf_counter() - began
    still_running = not end.query()
    torch.cuda.synchronize()
    return {"samples": 20, "seconds": seconds, "still_running": still_running}


if __name__ == "__main__":
    sys.exit(main())
