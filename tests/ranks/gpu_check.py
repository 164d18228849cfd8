"""Every job of gpu_jobs.py on this machine's GPUs, and what ``vramlens ranks`` says of it beside
what is true.

python tests/ranks/gpu_check.py OUT [NAME ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

JOBS = Path(__file__).with_name("gpu_jobs.py")
LAST = torch.cuda.device_count() - 1
TRUTH: dict[str, list[tuple[list[int], str]]] = {
    "ddp": [],
    "ddp_uneven": [([LAST], "uneven_batch")],
    "ddp_leak": [([1], "leak")],
    "ddp_gather": [([0], "rank0_gather")],
    "fsdp": [],
    "fsdp_extra": [([1], "rank_only")],
    "tp": [],
    "tp_uneven": [([0], "rank_only")],
    "pp": [],
    "pp_uneven": [([0], "pipeline_stage")],
    "wrong_device": [(list(range(1, LAST + 1)), "stray_context")],
    "hang": [([LAST], "desync")],
    "oom_one": [([1], "uneven_batch")],
    "raise_one": [],
}
FIRST = {"oom_one": 1, "raise_one": 1}
"""The rank that fails first; each of the others leaves a recording when SIGTERM ends it."""


def run(name: str, out: Path) -> dict[str, object]:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "nccl_trace_rank_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "nccl_trace_rank_"),
        "OMP_NUM_THREADS": "1",
    }
    began = time.monotonic()
    command = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(LAST + 1),
            "--no-python",
        ),
        *(sys.executable, "-m", "vramlens", "run", "-o", str(folder), str(JOBS), name),
    ]
    with (folder / "log.txt").open("w") as log:
        code = subprocess.run(
            command, env=environment, stdout=log, stderr=log, timeout=300, check=False
        ).returncode
    seconds = time.monotonic() - began
    answer = subprocess.run(
        [sys.executable, "-m", "vramlens", "ranks", "--json", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        return {"name": name, "ok": False, "error": answer.stderr, "exit": code}
    found = json.loads(answer.stdout)
    said = [(one["ranks"], one["cause"]) for one in found["differences"]]
    first = found["failures"][0]["rank"] if found["failures"] else None
    right = first == FIRST.get(name, first) and not (name in FIRST and found["missing"])
    return {
        "name": name,
        "ok": said == TRUTH[name] and right,
        "first": first,
        "truth": TRUTH[name],
        "said": said,
        "differences": found["differences"],
        "collectives": found["collectives"],
        "failures": found["failures"],
        "peaks": [row["peak_requested_bytes"] for row in found["ranks"]],
        "missing": found["missing"],
        "notes": found["notes"],
        "exit": code,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    out = Path(sys.argv[1])
    results = []
    for name in sys.argv[2:] or TRUTH:
        try:
            results.append(run(name, out))
        except subprocess.TimeoutExpired:
            results.append({"name": name, "ok": False, "error": "took more than 100 s"})
        one = results[-1]
        print(
            json.dumps(
                {
                    key: one[key]
                    for key in ("name", "ok", "truth", "said", "seconds", "error")
                    if key in one
                }
            )
        )
        sys.stdout.flush()
    (out / "results.json").write_text(json.dumps(results, indent=1))


main()
