"""Requests for all rows, of which a program uses some at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of

USER = "/home/user/rank.py"
LIBRARY = "/opt/lib/python3.12/site-packages/torch_geometric/nn/conv.py"
LINEAR: tuple[Frame, ...] = (
    (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
    (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
)
FRAMES: dict[str, tuple[Frame, ...]] = {
    "load": ((USER, 5, "load"),),
    "head": (*LINEAR, (USER, 30, "loss")),
    "score": ((USER, 20, "score"), (USER, 30, "loss")),
    "nested": ((USER, 12, "inner"), (USER, 20, "score"), (USER, 30, "loss")),
    "model": (
        *LINEAR,
        (USER, 14, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 30, "loss"),
    ),
    "layer": ((f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"), (USER, 41, "step")),
}
PRODUCT = "hidden @ self.items.weight.T"


@pytest.mark.parametrize(
    ("part", "expression", "text", "index"),
    [
        ("score", PRODUCT, "logits = self.score(hidden)[chosen]", "chosen"),
        ("score", PRODUCT, "x = self.score(self.norm(hidden))[labels != -100]", "labels != -100"),
        ("head", "self.head(hidden)", "logits = self.head(hidden)[mask]", "mask"),
        ("nested", "x.relu_()", "p, v = (t[idx] for t in score(policy, obs))", "idx"),
        (
            "score",
            "q.to(dtype)",
            "keys = score(self.k, torch.float32)[layer, :, :old]",
            "layer, :, :old",
        ),
        ("score", "q.float()", "rows = self.score(codes)[:n]", ":n"),
        ("score", "q.float()", "rows = self.score(codes)[0]", None),
        ("score", "q.float()", "logits = self.score(codes)[:, :-1]", None),  # all but the last
        ("score", "q.float()", "loss = self.score(codes)[task]", None),  # a key, perhaps
        ("score", "torch.fft.rfft(x.float())", "low = self.score(x)[:cutoff]", None),
        ("score", "x.float().cumsum(0)", "total = self.score(x)[:n]", None),
        ("score", PRODUCT, "keys = self.score(hidden)[layer, :, :old]", None),
        ("nested", "q.to(dtype)", "keys = self.score(hidden)[layer, :, :old]", None),
        ("score", PRODUCT, "logits = self.score(hidden[chosen])", None),
        ("score", PRODUCT, "logits = self.score(hidden)[:, -1]", None),
        ("score", PRODUCT, "logits = self.score(hidden)[0]", None),
        ("score", PRODUCT, "pairs = self.score(q, k)[rows, cols]", None),
        ("score", PRODUCT, "messages = self.score(hidden)[src]", None),  # one for each edge
        ("score", PRODUCT, "x = self.score(packed)[inverse]", None),
        ("score", "z @ z.T", "sim = self.score(z)[mask]", None),
        ("score", "images @ texts.T", "sim = self.score(images, texts)[mask]", None),
        ("nested", "x.relu_()", "a, b = (t[train_mask] for t in score(x, adj))", None),
        ("nested", "x.relu_()", "x, y = (t[perm] for t in score(n))", None),
        ("score", PRODUCT, "logits = self.score(hidden)['logits']", None),
        ("score", PRODUCT, "logits = self.other(hidden)[chosen] + self.score(hidden)", None),
        ("score", "torch.sort(hidden)", "logits = self.score(hidden)[chosen]", None),
        # Rows of a graph depend on each other, and so may those of any model.
        ("model", "self.linear(x)", "out = model(x, edges)[train_mask]", None),
        ("nested", PRODUCT, "logits = self.score(hidden)[chosen]", None),
    ],
)
def test_rows_that_are_picked_after_a_call(
    tmp_path: Path, part: str, expression: str, text: str, index: str | None
) -> None:
    run = MadeRun(FRAMES)
    run.asks("load", 100, name="hidden")
    source = {(USER, 30): text, (USER, 20): "y = f()", (USER, 12): "z = g()", (USER, 14): "a = b"}
    answer = run.fails(part, 400, tmp_path, expression=expression, source=source)
    finding = finding_of(answer, "picked_after")
    assert (finding is not None) == (index is not None)
    if finding is not None:
        assert finding == answer.findings[0]
        assert f"put [{index}] on what goes in" in (finding.fix or "")


@pytest.mark.parametrize(
    ("lines", "index"),
    [
        (("scores = feats @ self.items.weight.T", "return scores[:, -1]"), ":, -1"),
        (("logits = self.head(hidden)", "logits = logits[chosen]"), "chosen"),
        (("scores = feats @ w.T", "loss = scores.mean()", "return scores[:, -1]"), None),
        (("scores = feats @ w.T", "return scores[:, 1]"), None),
        (("scores = conv(feats)", "return scores[:, -1]"), None),
        (("scores = feats @ w.T", "for ids in loader:", "scores = scores[mask]"), None),
        (("scores = feats @ w.T", "loss = loss_of(scores[mask], y[mask])"), None),
        (("logp = F.log_softmax(x, -1)", "return -logp[torch.arange(n), y].mean()"), None),
    ],
)
def test_rows_that_the_next_lines_pick(
    tmp_path: Path, lines: tuple[str, ...], index: str | None
) -> None:
    run = MadeRun(FRAMES)
    run.asks("load", 2, name="float32[256, 32, 64] tensor")
    run.asks("load", 12800 * 64 * 4 / (1 << 20), name="items.weight", kind="parameter")
    source = {(USER, 20 + number): text for number, text in enumerate(lines)}
    part = "head" if "head" in lines[0] else "score"
    if part == "head":
        source = {(USER, 30 + number): text for number, text in enumerate(lines)}
    answer = run.fails(part, 400, tmp_path, expression=lines[0], source=source)
    finding = finding_of(answer, "picked_after")
    assert (finding is not None) == (index is not None)
    if finding is not None:
        assert finding == answer.findings[0]
        assert f"put [{index}] on what goes in" in (finding.fix or "")


@pytest.mark.parametrize("name", ["float32[8192, 64] tensor", "uint8[64, 224, 224] tensor"])
def test_last_columns_are_no_last_positions(tmp_path: Path, name: str) -> None:
    run = MadeRun(FRAMES)
    run.asks("load", 3, name=name)
    source = {(USER, 20): "scores = feats @ w.T", (USER, 21): "return scores[:, -1]"}
    answer = run.fails("score", 400, tmp_path, expression="feats @ w.T", source=source)
    assert finding_of(answer, "picked_after") is None


def test_a_request_beside_much_else_is_not_what_memory_ran_out_for(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("load", 2000, name="hidden")
    source = {(USER, 30): "logits = self.score(hidden)[chosen]"}
    answer = run.fails("score", 400, tmp_path, expression=PRODUCT, source=source)
    assert finding_of(answer, "picked_after") is None


FLOAT = "torch.from_numpy(tiles).to(device).float()"


@pytest.mark.parametrize(
    ("name", "passes", "times", "expression", "statement", "is_told"),
    [
        ("uint8[100000, 64] tensor", 0, 4, FLOAT, f"self.images = {FLOAT} / 255", True),
        ("rollout[0]", 6, 4, "obs.float()", "obs = obs.float()", True),
        (
            "float16[100000, 64] tensor",
            0,
            2,
            "x.to(torch.float32)",
            "x = x.to(torch.float32)",
            True,
        ),
        ("uint8[64, 3, 224, 224] tensor", 1, 4, "x.float()", "x = x.float()", False),  # a batch
        ("batch", 1, 4, "images.float()", "images = images.float()", False),
        ("uint8[100000, 64] tensor", 0, 3, "x.float()", "x = x.float()", False),
        ("uint8[100000, 64] tensor", 0, 4, "torch.cat([x, y])", "x = torch.cat([x, y])", False),
        ("float16[16384, 64] tensor", 0, 2, "x.float()", "f = fft.rfftn(x.float())", False),
        ("float16[16384, 64] tensor", 0, 2, "x.float()", "h = self.conv(x.float(), adj)", False),
    ],
)
def test_a_narrow_tensor_that_is_converted_whole(
    tmp_path: Path,
    name: str,
    passes: int,
    times: int,
    expression: str,
    statement: str,
    *,
    is_told: bool,
) -> None:
    run = MadeRun(FRAMES)
    run.asks("load", 100, name=name)
    for _ in range(passes):
        for module in ("model.a", "model.b"):
            run.frees(run.asks("layer", 1, module=module))
    answer = run.fails(
        "load", 100 * times, tmp_path, expression=expression, source={(USER, 5): statement}
    )
    finding = finding_of(answer, "converted_whole")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding == answer.findings[0]
        assert f"{times} times as wide" in finding.title
        assert "x[index].float()" in (finding.fix or "")


CACHE: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 3, "__init__"),),
    "repeat": ((USER, 70, "forward"),),
    "update": ((USER, 31, "update"), (USER, 71, "forward")),
}


@pytest.mark.parametrize(
    ("text", "name", "is_told"),
    [
        ("k = k.repeat_interleave(heads // kv_heads, dim=1)", "Cache.keys[{}]", True),
        ("k = repeat_kv(k, 8)", "past_kv[{}]", True),
        ("k = apply_rope(k, cos, sin)", "Cache.keys[{}]", False),
        ("ids = prompt.repeat(num_samples, 1)", "Cache.keys[{}]", False),
        ("cos, sin = (t.repeat_interleave(2, -1) for t in rope)", "Cache.keys[{}]", False),
        ("k = k.repeat_interleave(heads // kv_heads, dim=1)", "outputs[{}]", False),
    ],
)
def test_keys_that_are_repeated_before_a_cache_takes_them(
    tmp_path: Path, text: str, name: str, *, is_told: bool
) -> None:
    run = MadeRun(CACHE)
    run.asks("weights", 64, name="model.0.attn.q_proj.weight", kind="parameter")
    run.asks("weights", 8, name="model.0.attn.k_proj.weight", kind="parameter")
    for number in range(8):
        run.asks("update", 64, name=name.format(number))
    run.asks("repeat", 16)
    source = {(USER, 70): text, (USER, 71): "k, v = cache.update(layer, k, v)"}
    finding = finding_of(run.fails("update", 64, tmp_path, source=source), "repeated_heads")
    assert (finding is not None) == is_told
    if finding is not None:
        assert "enable_gqa=True (up to 448.00 MiB less)" in (finding.fix or "")
        assert "one head of keys for 8 heads of queries" in finding.evidence[-1]


def test_keys_of_as_many_heads_as_queries_are_not_repeated_for_them(tmp_path: Path) -> None:
    run = MadeRun(CACHE)
    for kind in ("q_proj", "k_proj"):
        run.asks("weights", 64, name=f"model.0.attn.{kind}.weight", kind="parameter")
    for number in range(8):
        run.asks("update", 64, name=f"Cache.keys[{number}]")
    run.asks("repeat", 16)
    source = {(USER, 70): "k = k.repeat(beams, 1, 1, 1)"}
    assert finding_of(run.fails("update", 64, tmp_path, source=source), "repeated_heads") is None
