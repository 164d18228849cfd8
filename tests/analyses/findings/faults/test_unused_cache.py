"""Caches of keys and values that nobody asks for, beside text that is generated."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/score.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
CACHES: Frame = ("/opt/lib/python3.12/site-packages/transformers/cache_utils.py", 101, "update")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "cached": (CACHES, CALL, (USER, 40, "score")),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 40, "score")),
}


@pytest.mark.parametrize(
    ("text", "after", "fix"),
    [
        ("out = model(ids)", "", "call the model with use_cache=False"),
        ("out = model(ids, past_key_values=None)", "", "call the model with use_cache=False"),
        (
            "out = model(ids, past_key_values=prompt_cache, use_cache=True)",
            "picked = out.logits.gather(-1, labels)",
            "pass a copy, past_key_values=copy.deepcopy(prompt_cache), where each call should begin",
        ),
        ("out = model(ids, past_key_values=past)", "past = out.past_key_values", ""),
        ("out = model(ids, past_key_values=past)", "ids = out.logits[:, -1].argmax(-1)", ""),
        ("model(chunk, past_key_values=past)", "", ""),  # a long prompt, piece by piece
        ("out = model(ids, past_key_values=copy.deepcopy(past))", "loss = f(out, labels)", ""),
    ],
)
def test_a_cache_that_a_call_makes_or_is_given(
    tmp_path: Path, text: str, after: str, fix: str
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.h.0.attn.weight", kind="parameter")
    run.frees(run.asks("layer", 1, module="model [no grad]"))
    for layer in range(4):
        for part in ("keys", "values"):
            module = f"model.h.{layer}.attn [no grad]"
            run.asks("cached", 10, name=f"DynamicLayer.{part}", module=module)
    source = {(USER, 40): text, (USER, 41): after}
    finding = finding_of(run.fails("layer", 60, tmp_path, source=source), "unused_cache")
    assert (finding is not None) == bool(fix)
    if finding is not None:
        assert finding.bytes == 80 * MIB
        assert (finding.fix or "").startswith(fix)
