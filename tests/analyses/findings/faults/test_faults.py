"""Programs that ran out of memory for a fault in their code: the first advice is the edit with which
they ran to their end under the same limit (H200, PyTorch 2.11; tests/data/faults).
"""

from __future__ import annotations

import json

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.findings import faults
from vramlens.analyses.findings.table import FROM_RECORDING
from vramlens.units import MIB

FAULTS = DATA / "faults"
TRUTH = json.loads((FAULTS / "truth.json").read_text())
OF_CODE = {
    row.id
    for row in FROM_RECORDING
    if row.find is not None and row.find.__module__.startswith(faults.__name__)
}
ELSEWHERE = {
    "dqn_replay.cap70": {"kept_in_store"},  # a replay buffer
    "drq_sac.cap50": {"kept_from_start"},  # one that was made whole
    "lightning_val.cap70": {"kept_in_store"},  # the outputs of validation
    "ode.cap92": {"solver_steps"},
    "offload_probe.cap50": {"kept_in_store"},  # what hooks collect
    "ppo_pixels.cap45": {"kept_in_store"},  # a rollout's observations
    "recommender_amp.cap70": {"optimizer_list"},
    "search_loop.cap70": {"finished_models"},  # a search over models keeps those it tried
}
"""Among the failures whose cause is another, those that have such a fault too."""


def explained(name: str) -> Explanation:
    return load(DATA / f"{name}.vram").explain()


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_the_first_advice_is_the_edit_that_the_run_lives_with(name: str) -> None:
    truth = TRUTH[name]
    first = explained(f"faults/{name}").findings[0]
    assert first.id == truth["first"]
    assert first.fix is not None
    assert truth["edit"] in first.fix
    if truth["line"] is not None:
        assert first.place is not None
        assert first.place.line == truth["line"]


@pytest.mark.parametrize("name", sorted(path.stem for path in (DATA / "failures").glob("*.vram")))
def test_no_other_failure_is_told_to_have_one(name: str) -> None:
    findings = explained(f"failures/{name}").findings
    assert {finding.id for finding in findings} & OF_CODE == ELSEWHERE.get(name, set())
    stores = [finding for finding in findings if finding.id == "kept_in_store"]
    are_possible = [store.verdict == "possible" and store != findings[0] for store in stores]
    assert all(are_possible) or name == "lightning_val.cap70"  # it is never emptied there


def test_what_each_fault_holds() -> None:
    """By the sizes that the programs' authors computed by hand."""
    bytes_of = {name: explained(f"faults/{name}").findings[0].bytes for name in TRUTH}
    assert bytes_of["attention"] == 5 * (2 * 6 * 4096 * 4096 * 4)
    assert bytes_of["codebook"] == 7200 * 2048 * 128 * 4
    assert bytes_of["logits"] == 32 * 1024 * 128256 * 2
    assert bytes_of["one_hot"] == 256 * 120 * 60001 * 8
    assert bytes_of["metric"] == 52 * (8 + 16) * MIB
    assert bytes_of["foreach"] == pytest.approx(1.15e9, rel=0.01)


def test_a_rollout_may_be_followed_by_its_backward_pass() -> None:
    """As the time steps of a recurrent model are: the advice has both cases."""
    turns = next(one for one in explained("faults/rollout").findings if one.id == "leak")
    assert turns.verdict == "possible"
    assert turns.fix is not None
    assert "if a backward pass follows" in turns.fix
    assert "torch.no_grad()" in turns.fix


def test_of_one_sample_no_batch_is_smaller() -> None:
    """A volume at a time: what helps is to keep fewer activations of it."""
    findings = {finding.id: finding for finding in explained("faults/one_sample").findings}
    assert "smaller_batch" not in findings
    fix = findings["activations"].fix
    assert fix is not None
    assert fix.startswith("use torch.utils.checkpoint")


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("weights_copy", "leak"),  # the layers of the model, one after the other
        ("unstepped_base", "gradients_kept"),  # of the backward pass that was under way
        ("unstepped_body", "activations"),  # what the first advice lets go of
        ("metric", "smaller_batch"),  # it grows whatever the batch
    ],
)
def test_nothing_beside_the_fault_leads_elsewhere(name: str, left_out: str) -> None:
    assert left_out not in {finding.id for finding in explained(f"faults/{name}").findings}
