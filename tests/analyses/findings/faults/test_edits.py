"""Edits that advice names: they compute the same, and what they are to save they save."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def assert_alike(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_kronecker_product_is_one_product_on_each_side() -> None:
    a, b, x = torch.randn(3, 3), torch.randn(4, 4), torch.randn(3, 4)
    assert_alike(torch.kron(a, b) @ x.flatten(), (a @ x @ b.T).flatten())
    d, eye, field = torch.randn(4, 4), torch.eye(4), torch.randn(4, 4)
    whole = torch.kron(d, eye) + torch.kron(eye, d)
    assert_alike(whole @ field.flatten(), (d @ field + field @ d.T).flatten())


def test_an_adapter_is_applied_beside_its_weight() -> None:
    weight, a, b, x = torch.randn(6, 5), torch.randn(2, 5), torch.randn(6, 2), torch.randn(3, 5)
    merged = F.linear(x, weight + 0.5 * (b @ a))
    assert_alike(merged, F.linear(x, weight) + 0.5 * F.linear(F.linear(x, a), b))


def test_a_gather_from_what_is_expanded_is_an_index_into_all_rows() -> None:
    x, index = torch.randn(2, 5, 3), torch.randint(0, 5, (2, 5, 4))
    wide = x.unsqueeze(1).expand(2, 5, 5, 3)
    picked = wide.gather(2, index.unsqueeze(-1).expand(2, 5, 4, 3))
    sample = torch.arange(2).view(2, 1, 1)
    assert_alike(picked, x.flatten(0, 1)[index + 5 * sample])


def test_blocks_are_multiplied_as_a_batch() -> None:
    blocks, x = [torch.randn(5, 5) for _ in range(3)], torch.randn(15)
    assert_alike(torch.block_diag(*blocks) @ x, (torch.stack(blocks) @ x.view(3, 5, 1)).flatten())


def test_patches_times_weights_are_a_convolution() -> None:
    weight, x = torch.randn(6, 3 * 9), torch.randn(2, 3, 8, 8)
    product = (weight @ F.unfold(x, 3)).view(2, 6, 6, 6)
    assert_alike(product, F.conv2d(x, weight.view(-1, 3, 3, 3)))


def test_a_weighted_sum_of_a_stack_is_added_up() -> None:
    parts, weights = [torch.randn(4, 5) for _ in range(3)], torch.randn(3)
    stacked = (torch.stack(parts) * weights.view(3, 1, 1)).sum(0)
    assert_alike(stacked, sum(w * part for w, part in zip(weights, parts, strict=True)))


def test_rows_of_one_kind_take_one_product() -> None:
    x, weight, kind = torch.randn(7, 4), torch.randn(3, 4, 5), torch.arange(7) % 3
    each = torch.bmm(x.unsqueeze(1), weight[kind]).squeeze(1)
    grouped = torch.empty(7, 5)
    for k in range(3):
        grouped[kind == k] = x[kind == k] @ weight[k]
    assert_alike(each, grouped)


def kept_bytes(inplace: bool) -> tuple[int, Any]:
    """What a layer, its normalization and a leaky ReLU keep for the backward pass, and the gradient."""
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(0)
    layer, norm = torch.nn.Conv2d(8, 8, 1), torch.nn.BatchNorm2d(8)
    x = torch.randn(16, 8, 16, 16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(F.leaky_relu(norm(layer(x)), 0.2, inplace=inplace))
    return sum(kept.values()), torch.autograd.grad(y.sum(), x)[0]


def test_a_leaky_relu_in_place_keeps_one_tensor_less() -> None:
    (whole, gradient), (less, same) = kept_bytes(inplace=False), kept_bytes(inplace=True)
    assert whole - less == 16 * 8 * 16 * 16 * 4
    assert_alike(gradient, same)


def test_a_sum_over_pairs_of_logarithms_is_a_product() -> None:
    alpha, trans = torch.randn(3, 7), torch.randn(7, 7)
    m = alpha.amax(-1, keepdim=True)
    product = ((alpha - m).exp() @ trans.exp()).log() + m
    torch.testing.assert_close(product, torch.logsumexp(alpha.unsqueeze(-1) + trans, -2))
