"""Gradients of views that were written in place."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json
import torch
from vramlens.cards.known_cards import card_named
from vramlens.prediction.predicted_run import PredictedRun

run = PredictedRun(card_named("h200"))
answers = {}


def events_of_backward(view):
    # MiB asked for, and with a minus those given back, in order, of the gradients but the loss's.
    x = torch.randn(1024, 1024, requires_grad=True, device="cuda")
    whole = x * 1
    part = torch.nn.functional.relu(view(whole), inplace=True)
    loss = (part * 2).sum()
    begin, older = len(run.log.kinds), len(run.log.sizes)
    loss.backward()
    events = zip(run.log.kinds[begin:], run.log.rows[begin:])
    return [
        (run.log.sizes[row] >> 20) * (1 if kind == 0 else -1)
        for kind, row in events
        if row >= older and run.log.sizes[row] >= 1 << 20
    ]


with run.going():
    answers["view"] = events_of_backward(lambda whole: whole.view(-1))
    answers["turned"] = events_of_backward(lambda whole: whole.t().unsqueeze(0))
    answers["part"] = events_of_backward(lambda whole: whole[:512])
    answers["whole"] = events_of_backward(lambda whole: whole)
print(json.dumps(answers))
"""


def test_the_gradient_of_a_view_written_in_place_is_copied() -> None:
    """As behind an instance norm (``unet3d_ckpt_fp16``): the product's gradient is copied, and freed.

    The gradient of a part makes a tensor of the whole itself, and that of a tensor that is no view
    is not copied.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    copied = [4, 4, -4, 4, 4, 4, -4, -4, -4]
    assert answers["view"][: len(copied)] == copied
    assert answers["turned"][: len(copied)] == copied
    assert answers["whole"][:2] == [4, 4]
    counts = {name: sum(size > 0 for size in sizes) for name, sizes in answers.items()}
    assert counts["view"] == counts["turned"] > counts["whole"]
