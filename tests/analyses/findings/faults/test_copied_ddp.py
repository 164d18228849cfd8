"""A copy of DistributedDataParallel's wrapper, and the wrapper itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/train.py"
DDP = f"{TORCH}/nn/parallel/distributed.py"
COPY: tuple[Frame, ...] = (
    (DDP, 1255, "_ddp_init_helper"),
    (DDP, 1324, "__setstate__"),
    ("/opt/lib/python3.12/copy.py", 261, "_reconstruct"),
    (USER, 30, "averaged"),
)
LOADED: tuple[Frame, ...] = (
    (DDP, 1255, "_ddp_init_helper"),
    (DDP, 1324, "__setstate__"),
    (f"{TORCH}/serialization.py", 1500, "load"),
    (USER, 10, "resume"),
)
WRAPPER: tuple[Frame, ...] = (
    (DDP, 1255, "_ddp_init_helper"),
    (DDP, 800, "__init__"),
    (USER, 20, "wrap"),
)


@pytest.mark.parametrize(
    ("frames", "mib", "is_told"),
    [(COPY, 100, True), (WRAPPER, 100, False), (LOADED, 100, False), (COPY, 4, False)],
)
def test_buckets_of_a_copy(
    tmp_path: Path, frames: tuple[Frame, ...], mib: int, *, is_told: bool
) -> None:
    run = MadeRun({"weights": ((USER, 5, "load"),), "buckets": frames})
    run.asks("weights", 100)
    run.asks("buckets", mib)
    finding = finding_of(run.ends(tmp_path), "copied_ddp")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 100 * MIB
        assert finding.place is not None
        assert finding.place.line == 30
        assert "copy.deepcopy(ddp.module)" in (finding.fix or "")
