"""Random numbers in a prediction: the host's are those of a run, the card's come from elsewhere."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

DRAWS = """
def drawn(device):
    torch.manual_seed(5)
    torch.nn.Linear(3000, 1000)
    torch.nn.init.normal_(torch.empty(1001, 1003))
    torch.nn.init.kaiming_normal_(torch.empty(701, 703))
    torch.empty(600, 600).bernoulli_(0.3)
    torch.randn(1200, 900).half()
    torch.rand(40, device=device)
    torch.randint(0, 9, (1000,), device=device)
    torch.empty(2000, 2000, device=device).normal_()
    own = torch.Generator().manual_seed(7)
    images = torch.randn(3, 700, 700, generator=own)
    torch.rand(1000, 900).sum()
    return torch.randint(0, 1000, (4,)).tolist() + torch.randint(0, 1000, (4,), generator=own).tolist()
"""

PROGRAM = f"""
import torch
from vramlens.cards.known_cards import card_named
from vramlens.prediction.predicted_run import PredictedRun
{DRAWS}
run = PredictedRun(card_named("h100"))
with run.going():
    print("host", drawn("cuda"))
    rows = torch.randn(64, 512, 128, device="cuda", requires_grad=True)
    print("masked", rows[torch.rand(64, 512, device="cuda") < 0.15].shape[0])
    print("bernoulli", rows[torch.empty(64, 512, device="cuda").bernoulli_(0.5).bool()].shape[0])
    degrees = torch.poisson(torch.full((20000,), 14.0, device="cuda")).long()
    print("edges", torch.repeat_interleave(torch.arange(20000, device="cuda"), degrees).numel())
    starts = (torch.rand(20000, device="cuda") * degrees).long()
    print("starts", int(starts.max()))
    edges = torch.zeros(2, 2_000_000, dtype=torch.long, device="cuda")
    kept = [edges[:, torch.rand(2_000_000, device="cuda") >= 0.2].shape[1] for _ in range(4)]
    print("kept", kept)
    print("ids", torch.unique(torch.randint(0, 1000, (500,), device="cuda")).numel())
"""


@pytest.fixture(scope="module")
def predicted() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_the_host_draws_what_it_draws_in_a_run(predicted: dict[str, str]) -> None:
    """Though weights have shapes only, and what is drawn on a card is none of the host's."""
    scope = {"torch": torch}
    # On a card nothing of this is drawn on the host: here it is drawn by a generator aside.
    text = DRAWS.replace("    torch.rand(40, device=device)\n", "")
    text = text.replace("    torch.randint(0, 9, (1000,), device=device)\n", "")
    text = text.replace("    torch.empty(2000, 2000, device=device).normal_()\n", "")
    exec(text, scope)  # the program above, on the host
    assert ast.literal_eval(predicted["host"]) == scope["drawn"]("cpu")


@pytest.mark.parametrize(
    ("name", "expected", "tolerance"),
    [
        ("masked", 0.15 * 64 * 512, 0.1),
        ("bernoulli", 0.5 * 64 * 512, 0.1),
        ("edges", 14 * 20000, 0.02),
        ("starts", 20, 0.5),
        ("ids", 394, 0.1),
    ],
)
def test_what_is_drawn_on_the_card_decides_shapes(
    predicted: dict[str, str], name: str, expected: float, tolerance: float
) -> None:
    """As often as in a run: of 500 numbers below 1,000 some 394 are distinct."""
    assert float(predicted[name]) == pytest.approx(expected, rel=tolerance)


def test_how_many_of_very_many_differs_each_time(predicted: dict[str, str]) -> None:
    """A little: 1.6 million edges are kept, give or take some 566."""
    kept = ast.literal_eval(predicted["kept"])
    assert len(set(kept)) == 4
    assert all(abs(count - 1_600_000) < 5 * 566 for count in kept)
