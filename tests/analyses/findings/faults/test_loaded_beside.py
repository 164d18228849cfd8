"""Checkpoints beside their model, state dicts of several models, and outputs that a model is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of

USER = "/home/user/finetune.py"
TRANSFORMERS = "/opt/lib/python3.12/site-packages/transformers/models/bert/modeling_bert.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "load": ((f"{TORCH}/serialization.py", 1500, "load"), (USER, 8, "main")),
    "build": ((USER, 9, "main"),),
    "deep copy": (
        (f"{TORCH}/storage.py", 1100, "clone"),
        (f"{TORCH}/storage.py", 1110, "__deepcopy__"),
        ("/usr/lib/python3.12/copy.py", 136, "deepcopy"),
        (f"{TORCH}/_tensor.py", 190, "__deepcopy__"),
        ("/usr/lib/python3.12/copy.py", 136, "deepcopy"),
        (USER, 30, "save"),
    ),
    "clone": ((USER, 31, "save"),),
    "layer": (
        (USER, 20, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 12, "main"),
    ),
    "attend": ((TRANSFORMERS, 300, "eager_attention_forward"), (USER, 12, "main")),
}
LOADS = "state = torch.load(path, map_location=device)"


@pytest.mark.parametrize(
    ("part", "entry", "is_told"),
    [
        ("load", "dict['ema']['blocks.{}.weight']", False),  # each step needs it
        ("load", "dict['optimizer']['state'][{}]['exp_avg']", True),
        ("load", "dict['features'][{}]", False),  # data
        ("build", "dict['model']['blocks.{}.weight']", False),  # an average of the weights
    ],
)
def test_a_checkpoint_that_stays_beside_its_model(
    tmp_path: Path, part: str, entry: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for number in range(10):
        run.asks(part, 30, name=entry.format(number))
    for number in range(10):
        run.asks("build", 30, name=f"model.blocks.{number}.weight", kind="parameter")
    finding = finding_of(run.fails("layer", 60, tmp_path), "kept_checkpoint")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 300 << 20


STATE = "Guard.state['optimizer']['state'][{}]['exp_avg']"


@pytest.mark.parametrize(
    ("part", "entry", "text", "is_told"),
    [
        ("deep copy", STATE, "self.state = copy.deepcopy(state_of(optimizer))", True),
        ("deep copy", "best[{}]['momentum_buffer']", "", True),
        ("clone", STATE, "self.state = {k: v.clone() for k, v in state.items()}", True),
        ("clone", STATE, "self.state = tree_map(lambda t: t.detach().clone(), state)", True),
        ("clone", STATE, "self.state = self.fresh_state()", False),  # what an optimizer makes
        ("deep copy", "EMA.shadow['blocks.{}.weight']", "", False),  # an average of the weights
        ("deep copy", "Guard.inputs[{}]", "", False),
        ("clone", "optimizer.slow['blocks.{}.weight']", "slow = p.clone()", False),
    ],
)
def test_a_copy_of_the_training_state_was_not_loaded(
    tmp_path: Path, part: str, entry: str, text: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for number in range(10):
        run.asks("build", 30, name=f"model.blocks.{number}.weight", kind="parameter")
    for number in range(10):
        run.asks(part, 30, name=entry.format(number))
    answer = run.fails("layer", 60, tmp_path, source={(USER, 31): text})
    finding = finding_of(answer, "kept_checkpoint")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 300 << 20
        assert "loaded" not in finding.title
        assert 'to("cpu", copy=True)' in (finding.fix or "")
    assert finding_of(answer, "two_copies") is None


@pytest.mark.parametrize(
    ("models", "key", "runs", "text", "is_told"),
    [
        (4, "layers.{}.weight", False, LOADS, True),
        (2, "layers.{}.weight", False, LOADS, False),
        (4, "frame{}", False, LOADS, False),
        (4, "layers.{}.weight", True, LOADS, False),  # weights that a model is given in turn
        (4, "layers.{}.weight", False, "m[name] = torch.zeros_like(p)", False),  # hand-made Adam
    ],
)
def test_weights_of_several_models_where_none_runs(
    tmp_path: Path, models: int, key: str, text: str, *, runs: bool, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    if runs:
        run.asks("layer", 1, module="model.a")
    for model in range(models):
        for number in range(6):
            run.asks("build", 20, name=f"list[{model}]['{key.format(number)}']")
    answer = run.fails("build", 60, tmp_path, source={(USER, 9): text})
    finding = finding_of(answer, "state_dicts")
    assert (finding is not None) == is_told


@pytest.mark.parametrize(
    ("part", "name", "text", "verdict"),
    [
        ("attend", "dict['attentions'][{}]", "out = model(x, output_attentions=True)", "likely"),
        ("attend", "BaseModelOutput.attentions[{}]", "out = model(x)", "possible"),
        ("attend", "dict['logits'][{}]", "out = model(x, output_attentions=True)", None),
        ("layer", "dict['attentions'][{}]", "out = model(x, output_attentions=True)", None),
    ],
)
def test_attention_weights_that_a_model_is_asked_for(
    tmp_path: Path, part: str, name: str, text: str, verdict: str | None
) -> None:
    run = MadeRun(FRAMES)
    run.asks("build", 20, name="model.a.weight", kind="parameter")
    for number in range(4):
        run.asks(part, 40, name=name.format(number))
    answer = run.fails("attend", 40, tmp_path, source={(USER, 12): text})
    finding = finding_of(answer, "requested_outputs")
    assert (None if finding is None else finding.verdict) == verdict


def test_hidden_states_that_the_program_collects_are_not_what_it_asked_for(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("build", 20, name="model.a.weight", kind="parameter")
    for number in range(6):
        run.frees(run.asks("layer", 1, module="model.a"), run.asks("layer", 1, module="model.b"))
        run.asks("attend", 40, name=f"hidden_states[{number}]")
    assert finding_of(run.fails("attend", 40, tmp_path), "requested_outputs") is None
