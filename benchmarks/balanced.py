"""What BalancedBatchSampler does to two GPUs: the same ragged data with and without it, peak by
rank.

    python benchmarks/balanced.py OUT

trains a small GPT on two GPUs for some steps, sequences of 32 to 2,048 tokens, three times: batches
as DistributedSampler deals them, with ``BalancedBatchSampler`` (padded) and with ``packed=True`` on
packed batches (with DistributedSampler's packed batches beside it). Every run is recorded; prints
one JSON object and writes OUT/balanced.json: by run each rank's peak of every step and of all
steps, how far the ranks are apart, tokens (with padding) that were computed, seconds, and what
``vramlens ranks`` says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

RUNS = ("padded_random", "padded_balanced", "packed_random", "packed_balanced")
SAMPLES, BATCH, STEPS, WIDTH, LAYERS = 2048, 8, 16, 512, 6


def lengths() -> list[int]:
    import random

    chance = random.Random(0)
    return [max(32, min(2048, int(chance.lognormvariate(5.8, 0.9)))) for _ in range(SAMPLES)]


def work(name: str, out: Path) -> None:
    """One rank of one run."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DistributedSampler

    import vramlens
    from vramlens.recovery.batch_size.balanced_batches import BalancedBatchSampler

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    body = nn.Sequential(
        nn.Embedding(8192, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, 8192)
    ).cuda()
    model = nn.parallel.DistributedDataParallel(body)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    sizes, packed = lengths(), name.startswith("packed")
    if name.endswith("balanced"):
        batches = list(BalancedBatchSampler(sizes, BATCH, packed=packed, drop_last=True))
    else:
        order = list(DistributedSampler(sizes, shuffle=True, seed=0, drop_last=True))
        batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    peaks, computed = [], 0
    with vramlens.record(str(out / name / f"rank{rank:05d}.vram")):
        began = time.perf_counter()
        for batch in batches[:STEPS]:
            tokens = [torch.randint(0, 8192, (sizes[index],), device="cuda") for index in batch]
            # A packed batch is one long row in chunks of 256; a padded one has a row a sample.
            rows = (
                torch.cat(tokens) if packed else nn.utils.rnn.pad_sequence(tokens, batch_first=True)
            )
            if packed:
                rows = functional.pad(rows, (0, -len(rows) % 256)).view(-1, 256)
            computed += rows.numel()
            torch.cuda.reset_peak_memory_stats()
            loss = functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    found = {
        "rank": rank,
        "peak_bytes": max(peaks),
        "step_peaks": peaks,
        "tokens": computed,
        "seconds": round(seconds, 3),
    }
    (out / name / f"rank{rank}.figures").write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    out = Path(sys.argv[1])
    results = {}
    for name in RUNS:
        (out / name).mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            __file__,
            str(out),
            name,
        ]
        subprocess.run(command, check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
        ranks = [json.loads(path.read_text()) for path in sorted((out / name).glob("*.figures"))]
        apart = [
            abs(a - b) / max(a, b)
            for a, b in zip(ranks[0]["step_peaks"], ranks[1]["step_peaks"], strict=True)
        ]
        answer = subprocess.run(
            [sys.executable, "-m", "vramlens", "ranks", "--json", str(out / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        said = json.loads(answer.stdout)["differences"] if answer.returncode == 0 else answer.stderr
        results[name] = {
            "peak_mib": [round(one["peak_bytes"] / 2**20, 1) for one in ranks],
            "ranks_apart_mean_share": round(sum(apart) / len(apart), 4),
            "ranks_apart_most_share": round(max(apart), 4),
            "tokens": [one["tokens"] for one in ranks],
            "seconds": max(one["seconds"] for one in ranks),
            "differences": said,
        }
        print(json.dumps({name: results[name]}), flush=True)
    (out / "balanced.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        work(sys.argv[2], Path(sys.argv[1]))
    else:
        main()
