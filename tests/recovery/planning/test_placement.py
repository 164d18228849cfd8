"""place: plans without a GPU, of models as they are loaded, beside slow oracles and beside what
really runs.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from recovery.training import net
from vramlens.errors import UsageError
from vramlens.recovery import place
from vramlens.recovery.planning.placement import Block, balanced, measured_blocks, needed_bytes

IDS = torch.randint(1, 90, (2, 16), generator=torch.Generator().manual_seed(0))


def by_name(blocks: Any) -> dict[str, Block]:
    return {block.name: block for block in blocks}


def by_trial(blocks: list[Block], limits: list[int]) -> float | None:
    """The least share of the fullest device, over all devices for all blocks that keep the
    order: slow, and the truth.
    """
    shares, output = [], sum(block.output_bytes for block in blocks)
    for devices in itertools.product(range(len(limits)), repeat=len(blocks)):
        firsts = [
            where
            for where, block in zip(devices, blocks, strict=True)
            if block.beside == block.name
        ]
        at = dict(zip((block.name for block in blocks), devices, strict=True))
        if firsts == sorted(firsts) and all(at[block.name] == at[block.beside] for block in blocks):
            sizes = [0] * len(limits)
            for device in set(devices):
                kept, time = 0, [0]
                for block in blocks:
                    if at[block.name] == device:
                        kept += block.kept_bytes
                        time.append(kept + block.activation_bytes)
                if device == devices[0]:
                    there = sum(b.output_bytes for b in blocks if at[b.name] == device)
                    time.append(kept + output - there)
                sizes[device] = max(time) + sum(
                    b.weight_bytes for b in blocks if at[b.name] == device
                )
            shares.append(max(size / limit for size, limit in zip(sizes, limits, strict=True)))
    best = min(shares)
    return best if best <= 1 else None


@st.composite
def tied_blocks(draw: Any) -> list[Block]:
    blocks: list[Block] = []
    for number in range(draw(st.integers(1, 6))):
        firsts = [block.name for block in blocks if block.beside == block.name]
        beside = draw(st.sampled_from([str(number), str(number), *firsts]))
        kept = draw(st.integers(0, 10))
        weight, output, activation = (
            draw(st.integers(0, 50)),
            draw(st.integers(0, kept)),
            draw(st.integers(0, 30)),
        )
        blocks.append(Block(str(number), weight, kept, output, activation, number, beside))
    return blocks


@given(tied_blocks(), st.lists(st.integers(20, 150), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_fullest_device_is_as_empty_as_can_be(blocks: list[Block], limits: list[int]) -> None:
    truth = by_trial(blocks, limits)
    pieces = [
        [b for b in blocks if b.beside == first.name]
        for first in blocks
        if first.beside == first.name
    ]
    found = balanced(pieces, limits)
    assert (found is None) == (truth is None)
    if found is not None and truth is not None:
        assert [a for a, _ in found][1:] == [b for _, b in found][:-1]
        output = sum(block.output_bytes for block in blocks)
        needs = [
            needed_bytes([b for piece in pieces[a:z] for b in piece], output) for a, z in found
        ]
        assert max(n / limit for n, limit in zip(needs, limits, strict=True)) == pytest.approx(
            truth, abs=1e-6
        )


def test_a_placement_counts_activations_and_runs() -> None:
    model = net(torch.float32, width=48, vocabulary=64, blocks=5)
    batch = torch.randint(0, 64, (64, 24))
    blocks = measured_blocks(model, batch)
    assert [block.name for block in blocks] == [
        "tokens",
        *(f"blocks.{i}" for i in range(5)),
        "head",
    ]
    assert all(block.beside == block.name for block in blocks)
    assert sum(b.weight_bytes for b in blocks) == sum(p.numel() * 4 for p in model.parameters())
    hidden = 64 * 24 * 48 * 4
    assert blocks[0].activation_bytes == hidden
    assert blocks[0].kept_bytes == 64 * 24 * 8  # the batch
    assert blocks[1].activation_bytes > 3 * hidden  # queries, keys and values at the least
    assert blocks[-1].output_bytes == 64 * 24 * 64 * 4
    expected = model(batch)
    found = place(model, batch, memory={"cpu": "4MB", "cpu:0": "4MB"}, dispatch=False)
    assert set(found.device_map.values()) == {"cpu", "cpu:0"}
    assert "activations counted" in str(found)
    assert torch.equal(found.model(batch), expected)
    with pytest.raises(UsageError, match="do not fit"):
        place(model, batch, memory={0: "1MB"}, dispatch=False)


def small(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of transformers as it is loaded, but small, and what it is called with."""
    t = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    ids = {"input_ids": IDS}
    if name == "gpt2":
        return t.GPT2LMHeadModel(
            t.GPT2Config(n_layer=4, n_embd=64, n_head=2, vocab_size=100)
        ).eval(), ids
    if name == "bert":  # some of whose tokens are not to be looked at
        model = t.BertForMaskedLM(t.BertConfig(**sizes, vocab_size=100))
        return model.eval(), ids | {"attention_mask": (IDS > 20).long()}
    if name == "t5":
        config = t.T5Config(
            num_layers=3, d_model=64, num_heads=2, d_kv=32, d_ff=128, vocab_size=100
        )
        return t.T5ForConditionalGeneration(config).eval(), ids | {"decoder_input_ids": IDS}
    if name == "vit":  # whose positions are a parameter of no smaller module
        model = t.ViTForImageClassification(t.ViTConfig(**sizes, image_size=32, patch_size=8))
        return model.eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}
    return t.LlamaForCausalLM(
        t.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=100)
    ).eval(), ids


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "vit", "llama"])
def test_models_of_transformers_are_placed_as_they_are_loaded(name: str) -> None:
    model, batch = small(name)
    before = [parameter.data_ptr() for parameter in model.parameters()]
    with torch.no_grad():
        expected = model(**batch).logits
    weights = sum(p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()])
    found = place(model, batch, memory={"cpu": weights, "cpu:0": weights}, dispatch=False)
    assert set(found.device_map.values()) == {"cpu", "cpu:0"}
    assert sum(block.weight_bytes for block in found.blocks) == weights
    assert before == [parameter.data_ptr() for parameter in model.parameters()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    pytest.importorskip("accelerate")
    place(model, batch, memory={"cpu": 10 * weights})  # accelerate knows one device of the CPU
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, expected)


def test_blocks_that_share_weights_go_to_one_device() -> None:
    model, batch = small("gpt2")
    found = place(model, batch, memory={0: "36MB", 1: "36MB"}, dispatch=False)
    names = by_name(found.blocks)
    assert names["lm_head"].beside == names["transformer.wpe"].beside == "transformer.wte"
    assert names["lm_head"].weight_bytes == 0
    assert found.device_map["lm_head"] == found.device_map["transformer.wte"] == 0
    assert found.device_map["transformer.h.3"] == found.device_map["transformer.ln_f"] == 1
    assert "transformer.h.0, lm_head" in str(found)


class Reader(nn.Module):
    """Reads its head's weights from the tokens, as Whisper's decoder in the original; and adds a
    parameter of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)
        self.shift = nn.Parameter(torch.zeros(64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x) + self.shift, self.tokens.weight)


def test_what_meets_outside_of_blocks_is_together() -> None:
    names = by_name(measured_blocks(Reader(), IDS))
    assert {name: block.beside for name, block in names.items() if block.beside != name} == {
        "norm": "tokens",
        "shift": "tokens",
    }
    with pytest.raises(UsageError, match="3 blocks that share tensors, tokens to shift, need"):
        place(Reader(), IDS, memory={"cpu": 20_000, "cpu:0": 40_000}, dispatch=False)


class Attention(nn.Module):
    def __init__(self, dtype: torch.dtype, key_heads: int = 4) -> None:
        super().__init__()
        self.key_heads, self.parts = (
            key_heads,
            nn.ModuleList([nn.Linear(128, 128, dtype=dtype) for _ in range(2)]),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.parts[0](x).unflatten(-1, (4, 32)).transpose(1, 2)
        k = q[:, : self.key_heads]
        y = functional.scaled_dot_product_attention(
            q, k, k, is_causal=True, enable_gqa=self.key_heads != 4
        )
        return self.parts[1](y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("dtype", "key_heads", "is_fused"),
    [
        (torch.float32, 4, True),
        (torch.bfloat16, 4, True),
        (torch.bfloat16, 2, True),
        (torch.float32, 2, False),
        (torch.float64, 4, False),
    ],
)
def test_attention_makes_scores_only_where_a_gpu_would(
    dtype: torch.dtype, key_heads: int, is_fused: bool
) -> None:
    length = 4096
    batch = torch.empty(1, length, 128, dtype=dtype)
    blocks = measured_blocks(Attention(dtype, key_heads), batch)
    scores = 4 * length * length * dtype.itemsize
    assert (max(block.activation_bytes for block in blocks) < scores / 10) == is_fused


def test_weights_are_never_copied() -> None:
    with torch.device("meta"):  # 4 TB: any copy would fail
        model = nn.Sequential(
            nn.Embedding(1000, 500_000), *(nn.Linear(500_000, 500_000) for _ in range(4))
        )
    found = place(model, IDS, memory=dict.fromkeys(range(3), "3TB"), dispatch=False)
    assert sum(found.used_bytes.values()) > 4 * 10**12


def test_nothing_stays_behind() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.seen = nn.Linear(4, 4), None
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.seen = self.inner(x)
            x += 1
            return self.seen

    model, batch = Counts(), torch.zeros(2, 4)
    state = torch.get_rng_state()
    measured_blocks(model, batch)
    gc.collect()
    assert model.seen is None
    assert model.calls == 0
    assert batch.sum() == 0
    assert torch.equal(torch.get_rng_state(), state)


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(100, 8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.first(ids)
        return self.second(x) if x.sum() > 0 else x


def test_what_computed_values_decide_is_refused_in_words() -> None:
    with pytest.raises(
        UsageError, match="Looks cannot run with shapes only, outside of its blocks: "
    ) as told:
        place(Looks(), IDS, memory={0: "1GB"}, dispatch=False)
    assert "\n" not in str(told.value)


def test_what_is_kept_is_counted_until_the_end() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            states = []
            for block in self.blocks:
                x = block(x)
                states.append(x)
            return tuple(states)

    size = 1024 * 64 * 4
    found = place(
        Skips(),
        torch.randn(1024, 64),
        memory={"cpu": 10 * size, "cpu:0": 10 * size},
        dispatch=False,
    )
    assert [block.kept_bytes for block in found.blocks] == [
        2 * size,
        size,
        size,
        size,
    ]  # the first has the batch
    late = [name for name, where in found.device_map.items() if where == "cpu:0"]
    # On the second a copy of the input; on the first the outputs of the second, which come back.
    weights = 64 * 65 * 4
    assert found.used_bytes["cpu:0"] == len(late) * (size + weights) + size
    assert found.used_bytes["cpu"] == 5 * size + (4 - len(late)) * weights
