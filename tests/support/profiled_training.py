"""Trains a small model under torch.profiler and compares the table of operators with
``prof.key_averages()``; prints what differs as JSON.

    python profiled_training.py FOLDER [cuda]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from vramlens.analyses.profile.explained_profile import explain_profile
from vramlens.read.profiler_trace import read_profiler_trace

# A trace has whole nanoseconds written as microseconds with three digits.
_ROUNDING_US = 0.01


def trained(folder: Path, device: str):
    """The profiler of three steps, and the trace that it exported."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    kept = []
    with profile(
        activities=activities,
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
    ) as profiler:
        for step in range(4):
            inputs = torch.randn(16 + step, 64).to(device)
            with record_function("forward"):
                loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(inputs * 2)
            profiler.step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return profiler, path


def differences(rows, averages, key_of_row, key_of_average) -> list[str]:
    """What the two tables do not agree on, one sentence each."""
    by_key = {key_of_row(row): row for row in rows}
    told = []
    for average in averages:
        key = key_of_average(average)
        row = by_key.get(key)
        if row is None:
            told.append(f"{key} is missing")
            continue
        allowed_us = _ROUNDING_US * average.count
        pairs = {
            "calls": (row.calls, average.count, 0),
            "self CPU": (row.self_cpu_ns / 1000, average.self_cpu_time_total, allowed_us),
            "CPU in all": (row.total_cpu_ns / 1000, average.cpu_time_total, allowed_us),
            "self GPU": (row.self_device_ns / 1000, average.self_device_time_total, allowed_us),
            "GPU in all": (row.total_device_ns / 1000, average.device_time_total, allowed_us),
            "memory": (row.self_memory_bytes, _memory(average), 0),
        }
        told += [
            f"{key}: {name} {mine} instead of {theirs}"
            for name, (mine, theirs, allowed) in pairs.items()
            if abs(mine - theirs) > allowed
        ]
    return told


def _memory(average) -> int:
    device = average.self_device_memory_usage
    return device if torch.cuda.is_available() else average.self_cpu_memory_usage


def is_operator(average) -> bool:
    is_on_cpu = average.device_type == torch.autograd.DeviceType.CPU  # kernels have rows, too
    return is_on_cpu and ("::" in average.key or "Backward" in average.key)


def main(folder: Path, device: str) -> None:
    profiler, path = trained(folder, device)
    with open(path, "rb") as file:
        found = explain_profile(read_profiler_trace(file, str(path)))
    operators = [row for row in found.tables.by("operator") if row.kind == "operator"]
    by_shape = [row for row in found.tables.by("shape") if row.kind == "operator"]
    by_line = [row for row in found.tables.by("line") if row.kind == "operator"]
    averages = [row for row in profiler.key_averages() if is_operator(row)]
    shaped = [row for row in profiler.key_averages(group_by_input_shape=True) if is_operator(row)]
    answer = {
        "operators": differences(operators, averages, lambda row: row.name, lambda row: row.key),
        "compared": len(averages),
        "shapes": differences(
            by_shape,
            shaped,
            lambda row: (row.name, row.shapes or "[]"),
            lambda row: (row.key, str(row.input_shapes)),
        ),
        "compared_shapes": len(shaped),
        "lines": sorted({str(row.place) for row in by_line if row.place is not None}),
        "self_cpu_ns": [sum(row.self_cpu_ns for row in rows) for rows in (operators, by_line)],
        "torch": torch.__version__,
    }
    (folder / "answer.json").write_text(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu")
