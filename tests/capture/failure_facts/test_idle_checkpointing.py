"""Gradient checkpointing that transformers leaves out in eval mode is told of when a request fails."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from vramlens.capture.failure_facts.idle_checkpointing import idle_checkpointing


@pytest.fixture
def layer_class(monkeypatch: pytest.MonkeyPatch) -> type:
    """A layer as transformers has it, where its module is not loaded."""
    base = type("GradientCheckpointingLayer", (), {"gradient_checkpointing": False})
    module = types.ModuleType("transformers.modeling_layers")
    module.__dict__["GradientCheckpointingLayer"] = base
    monkeypatch.setitem(sys.modules, "transformers.modeling_layers", module)
    return type("LlamaDecoderLayer", (base,), {})


def layer(kind: Any, *, is_on: bool, training: bool) -> Any:
    made = kind()
    made.gradient_checkpointing, made.training = is_on, training
    return made


def test_a_layer_in_eval_mode_is_told(layer_class: type) -> None:
    kept = layer(layer_class, is_on=True, training=False)
    assert idle_checkpointing() == "LlamaDecoderLayer"
    kept.training = True
    assert idle_checkpointing() is None


def test_without_checkpointing_there_is_nothing_to_tell(layer_class: type) -> None:
    kept = layer(layer_class, is_on=False, training=False)
    assert idle_checkpointing() is None
    assert not kept.gradient_checkpointing


def test_without_transformers_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "transformers.modeling_layers", raising=False)
    assert idle_checkpointing() is None


def test_layers_of_the_library_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    model.train()
    assert idle_checkpointing() is None
    model.eval()
    assert idle_checkpointing() == "LlamaDecoderLayer"
