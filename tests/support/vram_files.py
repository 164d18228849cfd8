"""Recordings as vramlens writes them: the shared snapshots with marks, and the other parts of a
``.vram`` file.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.recordings import data_of

TOTAL = 150_109_880_320
META = {
    "schema": "vramlens.recording/1", "vramlens": "0.2.0", "torch": "2.11.0", "cuda": "13.0", "driver": "580.1",
    "python": "3.12.3", "platform": "Linux", "command": ["python", "train.py", "--lr", "1e-4"], "trigger": "exit",
    "pid": 7, "host": "node1", "rank": 3, "local_rank": 3, "world_size": 8, "device_name": "NVIDIA H200",
    "total_bytes": {"0": TOTAL}, "settings": {"PYTORCH_CUDA_ALLOC_CONF": "x"}, "max_events": 100_000,
    "wrapped": {"0": False}, "step": 812, "module_marks": True, "oom": None, "dump_seconds": 0.2,
    "started_us": 1, "written_us": 2,
    "devices": {"0": {"name": "NVIDIA H200", "uuid": "GPU-1", "total_bytes": TOTAL, "memory_fraction": 1.0,
                      "limit_bytes": TOTAL, "stats": {"num_ooms": 0}}},
}  # fmt: skip


def vram(
    path: Path, snapshot: bytes | dict[str, Any], meta: dict[str, Any] | None = None, **parts: Any
) -> Path:
    """Writes a ``.vram`` file: meta beside META, and parts (names, ledger, samples) as JSON."""
    data = snapshot if isinstance(snapshot, bytes) else pickle.dumps(snapshot, 4)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("meta.json", json.dumps(META | (meta or {})))
        for name, value in parts.items():
            archive.writestr(f"{name}.json", json.dumps(value))
        archive.writestr("snapshot.pickle", data)
    return path


def marked(name: str, mark: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """A shared recording whose allocations carry marks."""
    snapshot: dict[str, Any] = pickle.loads(data_of(name))
    for trace in snapshot["device_traces"]:
        for event in trace:
            event["user_metadata"] = mark(event) if event["action"] == "alloc" else ""
    return snapshot


_PART = {309: "attn", 310: "attn", 311: "attn", 312: "mlp"}  # lines of tests/data/programs.py


class GptMarks:
    """The paths of the modules of tests/data/programs.py's GPT, by the lines of its forward, as
    they come.
    """

    def __init__(self, suffix: Callable[[set[str]], str] = lambda functions: "") -> None:
        self._suffix, self._block, self._was_mlp = suffix, 0, False

    def __call__(self, event: dict[str, Any]) -> str:
        frames = event["frames"]
        if not any(frame["name"] == "_call_impl" for frame in frames):
            return ""
        lines = [frame["line"] for frame in frames if frame["filename"].endswith("programs.py")]
        suffix = self._suffix({frame["name"] for frame in frames})
        if lines[0] == 324:
            self._block, self._was_mlp = 0, False
            return f"model{suffix}"
        if lines[0] == 332:
            return f"model.head{suffix}"
        part = _PART[lines[0]]
        self._block += self._was_mlp and part == "attn"
        self._was_mlp = part == "mlp"
        return f"model.blocks.{self._block}.{part}{suffix}"


def in_validation(functions: set[str]) -> str:
    """The mark's end for what validate() asks for."""
    return " [eval+grad]" if "validate" in functions else ""


def tensors(
    trace: Any, rows: Any, name: Callable[[int], str], kind: str, device: int = 0
) -> list[dict[str, Any]]:
    """Entries of names.json for some allocations of a Trace."""
    allocations = trace.devices[device].allocations
    return [
        {
            "device": device,
            "address": int(allocations.address[row]),
            "bytes": int(allocations.requested_bytes[row]),
            "name": name(n),
            "kind": kind,
        }
        for n, row in enumerate(rows)
    ]
