"""Small models, batches and an undisturbed training to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[Any, Any], Any]


class Net(nn.Module):
    """Tokens to classes, with a norm, attention and (where requested) dropout."""

    def __init__(
        self, width: int = 16, vocabulary: int = 23, blocks: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.up, self.down, self.drop = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.drop(
            self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        )
        return x + self.down(functional.gelu(self.up(x)))


def net(dtype: torch.dtype = torch.float64, **sizes: Any) -> Net:
    torch.manual_seed(0)
    return Net(**sizes).to(dtype)


def tokens(
    count: int = 10, length: int = 7, seed: int = 1, ignored: bool = True
) -> dict[str, torch.Tensor]:
    """Ragged: each sample ignores another number of its labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 23, (count, length), generator=generator)
    labels = torch.randint(0, 23, (count, length), generator=generator)
    if ignored:
        for index in range(count):
            labels[index, : (index * 3 + seed) % (length - 1)] = -100
    return {"ids": ids, "labels": labels}


def mean_loss(model: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def sum_loss(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    labels = batch["labels"].flatten()
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), labels, reduction="sum"), (
        labels != -100
    ).sum()


def count(batch: Any) -> torch.Tensor:
    return (batch["labels"] != -100).sum()


def undisturbed(
    model: nn.Module,
    batches: list[Any],
    loss_fn: Loss = mean_loss,
    kind: Any = torch.optim.AdamW,
    **options: Any,
) -> tuple[nn.Module, list[float], list[dict[str, torch.Tensor]]]:
    """A copy of the model trained plainly: losses, and the gradients of each step."""
    model = copy.deepcopy(model)
    optimizer = kind(model.parameters(), **{"lr": 1e-2} | options)
    losses, gradients = [], []
    for batch in batches:
        loss = loss_fn(model, batch)
        loss = loss[0] / loss[1] if isinstance(loss, tuple) else loss
        loss.backward()
        gradients.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return model, losses, gradients


class GradientsOf:
    """Keeps the gradients with which an optimizer steps."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []
        self._model = model
        optimizer.register_step_pre_hook(self._take)

    def _take(self, *_: Any) -> None:
        self.steps.append(
            {n: p.grad.clone() for n, p in self._model.named_parameters() if p.grad is not None}
        )


def furthest(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference of a parameter's gradient, its norm over the gradient's."""
    assert ours.keys() == theirs.keys()
    return max(
        float((ours[n] - theirs[n]).norm() / theirs[n].norm().clamp(min=1e-30)) for n in theirs
    )
