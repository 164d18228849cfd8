"""Reserves and workspaces of recurrent layers beside what cuDNN asked for on an H200."""

from __future__ import annotations

import pytest

from vramlens.prediction.kernels.recurrent import RecurrentCall

LSTM, GRU = 2, 3


def call(mode: int, units: int, **different: int | bool) -> RecurrentCall:
    """A call of 64 samples of 190 steps with rows of 256 numbers in float32."""
    usual: dict[str, int] = {
        "layers": 1,
        "directions": 1,
        "dropout": False,
        "packed": False,
        "rows": 190 * 64,
    }
    usual.update(different)
    gates = 4 if mode == LSTM else 3
    widths = [256] + [usual["directions"] * units] * (usual["layers"] - 1)
    weights = sum(gates * units * (width + units) for width in widths) * usual["directions"]
    return RecurrentCall(
        mode=mode,
        units=units,
        inputs=256,
        layers=usual["layers"],
        directions=usual["directions"],
        dropout=bool(usual["dropout"]),
        packed=bool(usual["packed"]),
        rows=usual["rows"],
        padded_rows=190 * 64,
        samples=64,
        size_each=4,
        weight_bytes=weights * 4,
    )


@pytest.mark.parametrize(
    ("asked", "reserve_mib", "workspace_mib"),
    [  # benchmarks/prediction/sweep.json.xz
        (call(LSTM, 512), 118.75, 145.88),
        (call(LSTM, 512, directions=2), 237.5, 375.38),
        (call(LSTM, 512, layers=2, dropout=True), 261.99, 186.88),
        (call(LSTM, 512, layers=2, directions=2, dropout=True), 525.47, 418.38),
        (call(LSTM, 512, packed=True, rows=7553), 73.76, 73.76),
        (call(LSTM, 512, layers=2, directions=2, packed=True, rows=7553), 324.54, 249.02),
        (call(GRU, 512), 142.5, 131.88),
        (call(GRU, 512, layers=2, directions=2, dropout=True), 620.47, 371.25),
    ],
)
def test_reserve_and_workspace_are_what_cudnn_asked_for(
    asked: RecurrentCall, reserve_mib: float, workspace_mib: float
) -> None:
    assert asked.reserve_bytes / 2**20 == pytest.approx(reserve_mib, abs=0.01)
    least, most = asked.workspace_bounds
    assert asked.workspace_bytes / 2**20 == pytest.approx(workspace_mib, rel=0.025)
    assert least <= workspace_mib * 2**20 <= most
