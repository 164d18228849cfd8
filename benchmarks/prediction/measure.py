"""Runs a script as it is and notes what PyTorch's allocator says at its end, one file a rank.

python measure.py FOLDER NAME SCRIPT [ARGUMENTS...]
torchrun --nproc-per-node 2 measure.py FOLDER NAME SCRIPT [ARGUMENTS...]
"""

from __future__ import annotations

import json
import os
import runpy
import sys

import torch


def figures() -> dict[str, object]:
    """PyTorch's own figures on this rank's device."""
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_bytes": stats["allocated_bytes.all.peak"],
        "reserved_bytes": stats["reserved_bytes.all.peak"],
        "requested_bytes": stats["requested_bytes.all.peak"],
        "reserved_now_bytes": stats["reserved_bytes.all.current"],
        "used_on_device_bytes": total - free,
        "total_bytes": total,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def main() -> None:
    folder, name, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    error = None
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        error = f"exit {ending.code}" if ending.code else None
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"[:300]
    noted = {**figures(), "error": error}
    rank = f".rank{os.environ['RANK']}" if "RANK" in os.environ else ""
    with open(os.path.join(folder, f"{name}{rank}.json"), "w") as file:
        json.dump(noted, file)


if __name__ == "__main__":
    main()
