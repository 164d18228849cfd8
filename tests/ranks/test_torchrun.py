"""A job of torchrun of which one rank raises: the others leave a recording too, and the answer
says who was first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from support.programs import PLUG_IN, meta_of, recordings
from vramlens.fleet import compare_files

pytest.importorskip("torch")

PROGRAM = (
    PLUG_IN
    + """
import time, torch
import torch.distributed as distributed
distributed.init_process_group("gloo")
gpu.use()
distributed.barrier()
if distributed.get_rank() == 1:
    time.sleep(0.3)
    raise ValueError("bad batch")
torch.futures.Future().wait()  # in C++, as in a collective that never ends
"""
)


def test_the_victim_leaves_a_recording(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    answer = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                "--no-python",
            ),
            *(sys.executable, "-m", "vramlens", "run", "-o", "runs", "train.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONWARNINGS": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert answer.returncode == 1
    assert "exitcode  : -15" in answer.stderr
    assert recordings(tmp_path / "runs") == [
        "rank00000.vram",  # a victim has no time for its summary
        "rank00001.vram",
        "rank00001.vram.summary",
    ]
    assert meta_of(tmp_path / "runs/rank00000.vram")["trigger"] == "sigterm"
    found = compare_files([tmp_path / "runs"])
    assert [one.rank for one in found.failures.failed] == [1]
    assert found.failures.victims == (0,)
    assert found.notes[0] == "rank 0 was ended by SIGTERM and did not fail: a victim of rank 1"
