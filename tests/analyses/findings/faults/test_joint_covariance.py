"""A Gaussian process that is asked about many points at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of

USER = "/home/user/terrain.py"
GPYTORCH = "/opt/lib/python3.12/site-packages/gpytorch"
PREDICTION: Frame = (f"{GPYTORCH}/models/exact_gp.py", 426, "_get_test_prior_mean_and_covariances")
KERNEL: Frame = (f"{GPYTORCH}/kernels/matern_kernel.py", 99, "forward")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "data": ((USER, 5, "load"),),
    "prediction": (KERNEL, PREDICTION, (USER, 69, "predict")),
    "training": (
        KERNEL,
        (f"{GPYTORCH}/models/exact_gp.py", 300, "__call__"),
        (f"{GPYTORCH}/mlls/exact_marginal_log_likelihood.py", 60, "forward"),
        (USER, 40, "fit"),
    ),
    "elsewhere": (KERNEL, (USER, 12, "covariance")),
}


@pytest.mark.parametrize(
    ("part", "mib", "is_told"),
    [
        ("prediction", 1024, True),  # 16,384 points in float32
        ("prediction", 1000, False),  # no square
        ("training", 1024, False),
        ("elsewhere", 1024, False),
    ],
)
def test_the_covariance_of_all_points(
    tmp_path: Path, part: str, mib: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 100)
    finding = finding_of(run.fails(part, mib, tmp_path), "joint_covariance")
    assert (finding is not None) == is_told
    if finding is not None:
        assert "16,384 points" in finding.title
        assert finding.place is not None
        assert finding.place.line == 69
