"""The mask of attention that every layer builds for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.explanation import Explanation

USER = "/home/user/ctc.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "builder": ((USER, 53, "forward"), CALL, (USER, 66, "forward"), CALL),
    "inline": ((USER, 66, "forward"), CALL),
    "attends": ((USER, 67, "forward"), CALL),
    "layer": ((USER, 80, "forward"), CALL),
}
BUILT = 'return bias.unsqueeze(0).masked_fill(padding[:, None, None, :], float("-inf"))'
CALLED = "bias = self.distance_bias(padding, q.dtype)"
TAKEN = "y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)"
MASK = "bfloat16[8, 8, 1728, 1728] tensor"


def explained(
    tmp_path: Path,
    *,
    part: str = "builder",
    called: str = CALLED,
    taken: str = TAKEN,
    layers: int = 4,
    name: str = MASK,
    learned: bool = False,
    fails_in: str = "layer",
) -> Explanation:
    run = MadeRun(FRAMES)
    for number in range(layers):
        attention = f"model.layers.{number}.attn"
        run.asks("weights", 2, name=f"{attention}.qkv.weight", kind="parameter")
        if learned:
            run.asks("weights", 2, name=f"{attention}.bias.rows.weight", kind="parameter")
    for number in range(layers):
        attention = f"model.layers.{number}.attn"
        module = f"{attention}.bias" if part == "builder" else attention
        run.asks(part, 364.5, name=name, module=module)
        queries = "bfloat16[8, 8, 1728, 64] tensor"
        run.asks("attends", 13.5, name=queries, module=attention)
        run.asks("layer", 54, module=f"model.layers.{number}")
    source = {(USER, 53): BUILT, (USER, 66): called, (USER, 67): taken}
    size = 364 if fails_in == "layer" else 365
    return run.fails(fails_in, size, tmp_path, source=source)


@pytest.mark.parametrize(
    ("part", "called", "taken"),
    [
        ("builder", CALLED, TAKEN),
        ("inline", "bias = alibi(self.slopes, x.shape[1], x.device)", TAKEN),
        ("inline", 'bias = bias.masked_fill(pad[:, None, None], float("-inf"))', TAKEN),
        (
            "inline",
            "m = causal[None] + pad[:, None, None].to(x.dtype)",
            "y = F.scaled_dot_product_attention(q, k.repeat(1, 2), v, m)",
        ),
        (
            "builder",
            "m = self.mask(lengths)",
            "y, _ = self.mha(h, h, h, attn_mask=m, need_weights=False)",
        ),
    ],
)
def test_a_mask_that_every_layer_builds(tmp_path: Path, part: str, called: str, taken: str) -> None:
    answer = explained(tmp_path, part=part, called=called, taken=taken)
    finding = finding_of(answer, "repeated_masks")
    assert finding is not None
    assert finding.bytes == 3 * 2 * 8 * 8 * 1728 * 1728
    assert finding.title.startswith("4 layers build the mask or bias of their attention each")
    assert finding.place is not None
    assert finding.place.line == 66
    assert "before the first layer" in (finding.fix or "")
    assert finding_of(answer, "attention_written_out") is None


@pytest.mark.parametrize(
    ("part", "called", "taken", "learned"),
    [
        ("builder", "bias = self.bias(x)", TAKEN, False),  # made of what the layer is given
        ("builder", "bias = self.bias(pair)", TAKEN, False),
        ("builder", CALLED, TAKEN, True),  # each layer learns its own
        ("inline", "bias = self.rel_table[index].permute(2, 0, 1)", TAKEN, False),
        ("inline", "bias = F.embedding(buckets, self.emb)", TAKEN, False),
    ],
)
def test_a_mask_that_differs_from_layer_to_layer(
    tmp_path: Path, part: str, called: str, taken: str, *, learned: bool
) -> None:
    answer = explained(tmp_path, part=part, called=called, taken=taken, learned=learned)
    assert finding_of(answer, "repeated_masks") is None
    # Attention that is fused already needs no other edit for its mask.
    assert finding_of(answer, "attention_written_out") is None


def test_a_mask_that_is_built_once(tmp_path: Path) -> None:
    answer = explained(tmp_path, layers=1)
    assert finding_of(answer, "repeated_masks") is None


def test_the_second_one_may_be_what_was_asked_for(tmp_path: Path) -> None:
    name = "float32[1, 1, 9780, 9780] tensor"  # 364.88 MiB
    run = MadeRun(FRAMES)
    run.asks("builder", 365, name=name, module="model.layers.0.attn.bias")
    source = {(USER, 53): BUILT, (USER, 66): CALLED, (USER, 67): TAKEN}
    finding = finding_of(run.fails("builder", 365, tmp_path, source=source), "repeated_masks")
    assert finding is not None
    assert "one more was asked for" in finding.evidence[0]


@pytest.mark.parametrize(
    ("called", "taken"),
    [
        ("scores = q @ k.transpose(-2, -1)", "scores = scores + bias"),
        ("attn = scores.softmax(-1)", "y = attn @ v"),
    ],
)
def test_weights_of_attention_are_still_told(tmp_path: Path, called: str, taken: str) -> None:
    answer = explained(tmp_path, part="inline", called=called, taken=taken)
    assert finding_of(answer, "repeated_masks") is None
    assert finding_of(answer, "attention_written_out") is not None


def test_what_the_fused_attention_makes_itself_is_no_reason_to_call_it(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for number in range(4):
        attention = f"model.layers.{number}.attn"
        run.asks("attends", 364.5, name=MASK, module=attention)
        run.asks("layer", 13.5, name="bfloat16[8, 8, 1728, 64] tensor", module=attention)
    source = {(USER, 67): "y = F.scaled_dot_product_attention(q, k, v)"}
    answer = run.fails("layer", 364, tmp_path, source=source)
    assert finding_of(answer, "attention_written_out") is None


@pytest.mark.parametrize(
    "called",
    [
        "bias = band_mask(n, self.window, dev)",
        "bias = dilated(n, 2 ** self.depth)",
        "bias = torch.rand(n, n) > self.p",
        "bias = F.dropout(ones, 0.1)",
    ],
)
def test_masks_that_differ_from_layer_to_layer(tmp_path: Path, called: str) -> None:
    answer = explained(tmp_path, part="inline", called=called)
    assert finding_of(answer, "repeated_masks") is None
