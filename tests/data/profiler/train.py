"""Trains a small model on the CPU under PyTorch's profiler and keeps every loss: makes train.json.gz and averages.json.

    cd tests/data/profiler && python train.py        # PyTorch 2.13, CPU

The trace has no absolute path, host name or process id in it; averages.json is what the profiler itself sums up.
"""

import gzip
import json
import os
import re

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16))
optimizer = torch.optim.Adam(model.parameters())
kept = []


def batch():
    return torch.randn(64, 256), torch.randint(0, 16, (64,))


def train_step():
    inputs, labels = batch()
    with record_function("forward"):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    keep(loss, inputs)


def keep(loss, inputs):
    kept.append((loss.detach(), inputs * 2))  # the leak: 64 KiB per step


def main():
    settings = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    settings["schedule"] = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], **settings) as profiler:
        for _ in range(4):
            train_step()
            profiler.step()
    profiler.export_chrome_trace("train.json")
    with open("train.json") as file:
        text = file.read()
    os.remove("train.json")
    trace = json.loads(text)
    trace.pop("host_name", None)
    trace.pop("trace_id", None)
    text = json.dumps(trace, indent=1)
    process = str(next(event["pid"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"))
    text = re.sub(rf"\b{process}\b", "4242", text)
    text = re.sub(r"0x[0-9a-f]{8,}", "0x7f0000000000", text)
    with gzip.GzipFile("train.json.gz", "wb", mtime=0) as file:
        file.write(re.sub(r"\n\s+", "\n", text).encode())
    averages = {
        row.key: {
            "calls": row.count,
            "self_cpu_us": row.self_cpu_time_total,
            "total_cpu_us": row.cpu_time_total,
            "self_memory_bytes": row.self_cpu_memory_usage,
        }
        for row in profiler.key_averages()
        if "::" in row.key or "Backward" in row.key  # operators alone: it counts Python functions too
    }
    with open("averages.json", "w") as file:
        json.dump(averages, file, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
