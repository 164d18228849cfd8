"""What pruning, quantisation and small optimizers do to bytes, and which of them come back: exact,
on the CPU.

    python benchmarks/pruning.py

Each way begins with the same GPT and AdamW after one training step, is applied to the linear layers
of its blocks, and goes on for one more (what does not train: for one forward). Counted are the
tensors themselves and, by a simulated device that counts every storage (``CountingMeter``; on the
CPU), all that is alive afterwards and the peak of a step. Prints a table in Markdown.
"""

from __future__ import annotations

import copy
import gc
import importlib
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from gpt import GPT
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from vramlens.recovery.meters import CountingMeter

MIB = 2**20


class WeightOnly(nn.Module):
    """A linear layer whose weights are int8 with a scale a row; a float copy is made for the
    time of its forward.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The linear layers of the blocks: who has them, and under which name."""
    return [
        (parent, name, child) for block in model.blocks for parent in block.modules()
        for name, child in parent.named_children() if isinstance(child, nn.Linear)
    ]  # fmt: skip


def masked(model: nn.Module, share: float = 0.5) -> None:
    for _, _, layer in layers(model):
        prune.l1_unstructured(layer, "weight", share)


def made_permanent(model: nn.Module) -> None:
    masked(model)
    for _, _, layer in layers(model):
        prune.remove(layer, "weight")


def narrower(model: nn.Module) -> None:
    """Half of each feed-forward layer's neurons, really taken out: the layers are smaller ones."""
    for block in model.blocks:
        keep = (
            block.up.weight.detach()
            .norm(dim=1)
            .topk(block.up.out_features // 2)
            .indices.sort()
            .values
        )
        up, down = (
            nn.Linear(block.up.in_features, len(keep)),
            nn.Linear(len(keep), block.down.out_features),
        )
        with torch.no_grad():
            up.weight.copy_(block.up.weight[keep])
            up.bias.copy_(block.up.bias[keep])
            down.weight.copy_(block.down.weight[:, keep])
            down.bias.copy_(block.down.bias)
        block.up, block.down = up, down


def sparse(share: float) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        masked(model, share)
        for parent, name, layer in layers(model):
            prune.remove(layer, "weight")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                weight = layer.weight.detach().to_sparse_csr()
            setattr(parent, name, Sparse(weight, layer.bias))

    return change


class Sparse(nn.Module):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x.flatten(0, -2).T).T.reshape(*x.shape[:-1], -1) + self.bias


def weight_only(model: nn.Module) -> None:
    for parent, name, layer in layers(model):
        setattr(parent, name, WeightOnly(layer))


def half(model: nn.Module) -> None:
    model.to(torch.bfloat16)


def size(tensor: Any) -> int:
    if tensor.layout is torch.sparse_csr:
        return sum(
            size(part) for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        )
    return tensor.numel() * tensor.element_size()


def held(model: nn.Module) -> dict[int, Any]:
    """Every tensor that modules hold: parameters, buffers (masks), and plain attributes (what a
    mask makes).
    """
    found: dict[int, Any] = {}
    for module in model.modules():
        for value in [
            *module._parameters.values(),
            *module._buffers.values(),
            *vars(module).values(),
        ]:
            if isinstance(value, torch.Tensor):
                found[id(value)] = value
    return found


def measured(change: Callable[[nn.Module], None] | None, how: str) -> dict[str, int]:
    """Bytes by kind after a change. how: ``train`` (a new optimizer), ``keep`` (the old one goes
    on), ``infer``.
    """
    torch.manual_seed(0)
    with CountingMeter() as meter:
        model = GPT(2048, 256, 4, context=128)
        optimizer: Any = None if how == "infer" else torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(0, 2048, (4, 128))

        def step() -> None:
            functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()

        if how == "infer":
            model.requires_grad_(False)
        else:
            step()
        if change is not None:
            change(model)
        if how == "train":
            optimizer = torch.optim.AdamW(
                [p for p in model.parameters() if p.requires_grad], lr=1e-4
            )
        gc.collect()
        meter.restart()
        if how == "infer":
            with torch.no_grad():
                model(ids)
        else:
            optimizer.zero_grad()
            step()
        gc.collect()
        own = held(model)
        gradients = [t.grad for t in own.values() if t.is_leaf and t.grad is not None]
        states = [] if optimizer is None else optimizer.state.values()
        state = [t for one in states for t in one.values() if isinstance(t, torch.Tensor)]
        return {
            "model": sum(map(size, own.values())), "gradients": sum(map(size, gradients)),
            "optimizer": sum(map(size, state)), "alive": meter.allocated_bytes(), "peak": meter.peak_bytes(),
        }  # fmt: skip


def dynamic_bytes() -> str:
    """PyTorch's own dynamic quantisation, whose packed weights no tensor shows: unpacked to
    count them.
    """
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return "not measured: this PyTorch has no engine for it"
    torch.manual_seed(0)
    model = GPT(2048, 256, 4, context=128)
    warnings.simplefilter("ignore")
    try:
        changed = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(model), {nn.Linear}, torch.qint8
        )
    except Exception as error:
        return f"not measured: {type(error).__name__}: {error}"
    before = sum(size(layer.weight) for layer in model.modules() if isinstance(layer, nn.Linear))
    weights = [
        layer.weight() for layer in changed.modules() if callable(getattr(layer, "weight", None))
    ]
    scales = sum(8 + 8 for _ in weights)
    after = sum(weight.numel() for weight in weights) + scales
    return f"{before / MIB:.2f} MiB of linear weights become {after / MIB:.2f} MiB ({after / before - 1:+.0%})"


def optimizer_bytes() -> str:
    """The state of torchao's small optimizers, where it is installed; eager, which bytes do not
    mind.
    """
    if find_spec("torchao") is None:
        return "not measured: torchao is not installed"
    small = importlib.import_module("torchao.optim")
    torch.compiler.set_stance("force_eager")
    found = []
    for kind in (torch.optim.AdamW, small.AdamW8bit, small.AdamW4bit):
        torch.manual_seed(0)
        model, ids = GPT(2048, 256, 4, context=128), torch.randint(0, 2048, (4, 128))
        optimizer = kind(model.parameters(), lr=1e-4)
        functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        state = [
            t
            for one in optimizer.state.values()
            for t in one.values()
            if isinstance(t, torch.Tensor)
        ]
        found.append(f"{kind.__name__} {sum(map(flat_size, state)) / MIB:.2f} MiB")
    return ", ".join(found)


def flat_size(tensor: Any) -> int:
    """The bytes of a tensor, or of those that a tensor of another class is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return size(tensor)
    return sum(flat_size(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])


def main() -> None:
    ways: list[tuple[str, Callable[[nn.Module], None] | None, str]] = [
        ("as it is, training", None, "train"),
        ("half pruned by masks (`prune.l1_unstructured`)", masked, "train"),
        ("... made permanent (`prune.remove`)", made_permanent, "train"),
        ("half of the feed-forward neurons taken out, new optimizer", narrower, "train"),
        ("... with the old optimizer still there", narrower, "keep"),
        ("as it is, inference", None, "infer"),
        ("half pruned, sparse CSR", sparse(0.5), "infer"),
        ("90% pruned, sparse CSR", sparse(0.9), "infer"),
        ("bfloat16 weights", half, "infer"),
        ("int8 weights only", weight_only, "infer"),
    ]
    print("| way | model | gradients | optimizer | alive after a step | peak of a step |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, change, how in ways:
        found = measured(change, how)
        cells = [
            f"{found[key] / MIB:.2f}"
            for key in ("model", "gradients", "optimizer", "alive", "peak")
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\nMiB, torch {torch.__version__}. Dynamic quantisation: {dynamic_bytes()}.")
    print(f"The optimizer's state: {optimizer_bytes()}.")


if __name__ == "__main__":
    main()
