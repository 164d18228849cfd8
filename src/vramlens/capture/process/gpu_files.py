"""True where this machine has a GPU at all, told by its files: nothing is loaded and no driver is
asked.
"""

from __future__ import annotations

import os
import sys

_FILES = (
    "/dev/nvidiactl",
    "/dev/nvidia0",
    "/dev/dxg",
    "/dev/nvhost-gpu",
    "/dev/kfd",
    "/dev/dri/renderD128",
)
"""What the drivers of NVIDIA, Windows' Linux, Tegra, AMD and Intel put there."""
_HIDDEN = ("", "-1", "NoDevFiles")


def has_no_gpu() -> bool:
    """True where a program here can use no GPU for certain; False where that cannot be told."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in _HIDDEN:
        return True
    return sys.platform == "linux" and not any(map(os.path.exists, _FILES))
