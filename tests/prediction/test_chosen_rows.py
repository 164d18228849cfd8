"""How many rows are taken where values choose them that nobody knows."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from support.programs import python

pytest.importorskip("torch")

PROGRAM = textwrap.dedent("""
    import json
    import torch
    from vramlens.cards.known_cards import card_named
    from vramlens.prediction.predicted_run import PredictedRun

    run = PredictedRun(card_named("h200"))
    log, said = run.log, {}

    def least_bytes(tensor):
        return log.bounds.get(log.row_of(tensor), (tensor.nbytes, 0))[0]

    with run.going():
        boxes = torch.randn(600, 4, device="cuda")
        level = boxes.prod(1).sqrt().log2().floor().clamp(0, 2).long()
        said["levels"] = [(level == each).nonzero().shape[0] for each in range(3)]
        said["shifted"] = boxes[(boxes[:, 0].clamp(2, 5).to(torch.int64) - 2) == 1].shape[0]
        said["far"] = boxes[boxes[:, 0].clamp(0, 1000).long() == 1].shape[0]
        said["open"] = boxes[boxes[:, 0].clamp(min=0).long() == 1].shape[0]

        kept = (boxes[:, 0] > 0.5).nonzero().squeeze(1)[:100]
        first = boxes[kept] * 2
        points = first.view(1, -1, 2) + 1
        said["first"] = [first.shape[0], least_bytes(first)]
        said["folded"] = [points.shape[1], least_bytes(points)]
        said["other"] = least_bytes(boxes[:100] + 1)

        draws = torch.rand(2_000_000, device="cuda")
        rows = torch.arange(2_000_000, device="cuda")
        keep = draws >= 0.25
        said["kept"] = [rows[keep].shape[0], log.guess_of(rows[keep])]
        said["dropped"] = rows[~keep].shape[0]
        keep[:5] = True
        said["written"] = rows[keep].shape[0]

        x, y = torch.meshgrid(torch.arange(60.0), torch.arange(60.0), indexing="ij")
        points = torch.stack([x.flatten(), y.flatten()], 1).cuda()
        corners = torch.rand(18, 2, device="cuda") * 30
        corners[0] = 0.0
        inside = ((points[:, None] > corners) & (points[:, None] < corners + 9)).all(-1)
        areas = torch.full((18,), 81.0, device="cuda").expand_as(inside)  # 3600 x 18 numbers
        smallest, box = torch.where(inside, areas, torch.full_like(areas, 1e9)).min(1)
        said["inside"] = [points[smallest < 1e9].shape[0], corners[box[smallest < 1e9]].shape[0]]
        layer = torch.nn.Linear(2, 18).cuda()
        said["layer"] = points[layer(points).max(1).values > 0].shape[0]
    print(json.dumps(said))
""")


@pytest.fixture(scope="module")
def said() -> Any:
    done = python(Path(__file__).parent, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_whole_numbers_between_near_bounds_are_even_choices(said: Any) -> None:
    assert said["levels"] == [200, 200, 200]
    assert said["shifted"] == 150
    assert said["far"] == said["open"] == 600


def test_the_first_of_chosen_rows_may_be_fewer(said: Any) -> None:
    assert said["first"] == [100, 1]
    assert said["folded"] == [200, 1]
    assert said["other"] == 1600


def test_many_random_numbers_keep_their_share(said: Any) -> None:
    count, guess = said["kept"]
    assert guess is None
    assert 0 < abs(count - 1_500_000) < 5 * 612  # as many as are drawn, with their deviation
    assert said["dropped"] == 2_000_000 - count
    assert said["written"] == 2_000_000


def test_points_within_boxes_are_counted_where_both_are_known(said: Any) -> None:
    count, chosen = said["inside"]
    assert 64 < count < 18 * 81  # of 3,600: the boxes are 9 x 9, and some lie over others
    assert chosen == count


def test_what_a_network_says_of_known_points_is_not_known(said: Any) -> None:
    assert said["layer"] == 3600
