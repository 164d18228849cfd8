"""The fast path of ``torch.nn.TransformerEncoderLayer`` and ``torch.nn.MultiheadAttention``, which
both take in evaluation without gradients: one operator a layer, with fewer copies.

aten/src/ATen/native/transformers/transformer.cpp (transformer_encoder_layer_forward) and
cuda/attention.cu (native_multi_head_attention_cuda).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch

PADDED = "what the fast path of transformer layers saves by leaving padding out"
_FUSED_WIDTH = 8
"""A head's width is a multiple of it where a fused attention may run."""


def put_encoder_layers(runner: OperatorRunner) -> None:
    """Makes the operators of the fast path run by shapes."""
    import torch  # the module itself: it is changed

    def by_shapes(plain: Callable[..., Any], shaped: Callable[..., Any]) -> Callable[..., Any]:
        return lambda first, *more: (shaped if runner.is_on_card(first) else plain)(first, *more)

    def is_left_aligned(source: Any, mask: Any) -> bool:
        if not runner.is_on_card(source):
            return bool(plain_left_aligned(source, mask))
        runner.notes[PADDED] = None
        return False  # else it becomes a nested tensor, whose size hangs on the mask's values

    plain_left_aligned = torch._nested_tensor_from_mask_left_aligned
    for name, function in (
        ("_transformer_encoder_layer_fwd", by_shapes(torch._transformer_encoder_layer_fwd, _layer)),
        ("_native_multi_head_attention", by_shapes(torch._native_multi_head_attention, _attention)),
        ("_nested_tensor_from_mask_left_aligned", is_left_aligned),
    ):
        setattr(torch, name, function)


def _layer(source: Any, width: int, heads: int, *more: Any) -> Any:
    """What ``torch._transformer_encoder_layer_fwd`` returns."""
    attention_weights, (uses_gelu, norms_first, epsilon), norms, feed_forward, mask = (
        more[:4], more[4:7], more[7:11], more[11:15], more[15:],
    )  # fmt: skip

    def normalized(tensor: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(tensor, (width,), weight, bias, epsilon)

    result = normalized(source, *norms[:2]) if norms_first else source
    key_mask = mask[0] if mask else None
    inputs = (result, result, result)
    result, _ = _attention(*inputs, width, heads, *attention_weights, key_mask, False)
    del inputs
    result += source
    if not norms_first:
        result = normalized(result, *norms[:2])
    before = result
    if norms_first:
        result = normalized(result, *norms[2:])
    result = _fed_forward(result, *feed_forward, uses_gelu=uses_gelu)
    result += before
    return result if norms_first else normalized(result, *norms[2:])


def _fed_forward(
    tensor: Any, weight: Any, bias: Any, out_weight: Any, out_bias: Any, *, uses_gelu: bool
) -> Any:
    rows = tensor.view(-1, tensor.shape[-1])
    inner = torch._addmm_activation(bias, rows, weight.t(), use_gelu=uses_gelu)
    return torch.addmm(out_bias, inner, out_weight.t()).view(tensor.shape)


def _attention(query: Any, key: Any, value: Any, width: int, heads: int, *more: Any) -> Any:
    """What ``torch._native_multi_head_attention`` returns: the result, and the weights or None."""
    weight, bias, out_weight, out_bias, *options = more
    usual: tuple[Any, ...] = (None, True, True)
    mask, wants_weights, averages_weights, *_ = (*options, *usual[len(options) :])
    samples, steps, _ = query.shape
    if mask is None and not wants_weights and width // heads % _FUSED_WIDTH == 0:
        packed = torch.nn.functional.linear(query, weight, bias)
        parts: Any = [
            part.view(samples, steps, heads, -1).transpose(1, 2) for part in packed.chunk(3, -1)
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(*parts)
        mixed = mixed.transpose(1, 2).reshape(samples, steps, width)
        return torch.nn.functional.linear(mixed, out_weight, out_bias), None
    packed = torch.nn.functional.linear(query, weight)
    scaled = torch.empty_like(packed).view(3, samples * heads, steps, -1)
    del packed
    weights: Any = torch.bmm(scaled[0], scaled[1].transpose(1, 2)).softmax(-1)
    mixed = scaled[0].view(samples, heads, steps, -1)  # written over the query
    if not wants_weights:
        weights = None
    mixed = mixed.transpose(1, 2).contiguous().view(samples, steps, width)
    result = torch.nn.functional.linear(mixed, out_weight, out_bias)
    if weights is not None and averages_weights:
        weights = weights.view(samples, heads, steps, steps).sum(1).div_(heads)
    return result, weights
