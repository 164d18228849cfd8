"""Attention as the kernel that the card would run: flash, memory-efficient or plain, with what each
keeps for backward and works in.

Which one is chosen: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. What each returns and
saves: attention.cu beside it, whose shapes PyTorch has (torch/_meta_registrations.py).

Memory-efficient backward: delta, of 32 bits summed from a product (attention_backward.cu), and sums of
the query's gradient in blocks of 64 x 64 numbers, with 16 bytes each (workspace_size in
mem_eff_attention/kernel_backward.h). It and flash's copy a gradient whose rows of a sample lie apart,
and cuDNN's one that lies otherwise than the output. Flash's: the sums of the query's gradient in float32 and the
rows' sums, lengths rounded to 128 and widths to 32; with grouped queries the gradients of every
query's own head first (mha_bwd in flash_attn/flash_api.cpp). cuDNN's: the query's gradient in
float32, the rows' sums and 256 bytes (recording of amp: 8,519,936 bytes), and with grouped queries
the gradients of every query's own head, too (``operators.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vramlens.cards.known_cards import Card
from vramlens.prediction.kernels.kernel_call import KernelCall, Rule

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch

_MOST_FLASH_WIDTH = 256
_ALIGNED = 8  # numbers
_MOST_CUDNN_WIDTH, _MOST_ON_HOPPER = 128, 256


def chosen_attention(card: Card, runner: OperatorRunner) -> Attention:
    """Attention on a card."""
    return Attention(card, runner)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one ``scaled_dot_product_attention``."""

    query: Any
    key: Any
    value: Any
    mask: Any = None
    dropout: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    is_grouped: bool = False

    @property
    def width(self) -> int:
        """Numbers in a row of the query."""
        return int(self.query.shape[-1])

    @property
    def has_one_width(self) -> bool:
        """Whether rows of the values are as wide as those of the query."""
        return bool(self.query.shape[-1] == self.value.shape[-1])

    @property
    def is_half(self) -> bool:
        """Whether numbers have 16 bits."""
        return self.query.dtype in (torch.float16, torch.bfloat16)

    @property
    def is_fusible(self) -> bool:
        """Whether the tensors have the form that fused kernels take: four dimensions, and rows
        whose numbers lie side by side, those of the mask, too
        (check_last_dim_stride_equals_1_dense in sdp_utils_cpp.h).
        """
        inputs = (self.query, self.key, self.value)
        has_rows = all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in inputs)
        has_mask_rows = self.mask is None or self.mask.stride(-1) == 1
        is_whole = self.query.dim() == 4 and self.query.numel() and self.key.numel()
        return bool(is_whole and has_rows and has_mask_rows)

    @property
    def needs_gradient(self) -> bool:
        """Whether a backward will follow."""
        inputs = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)

    @property
    def learns_mask(self) -> bool:
        """Whether the mask takes a gradient."""
        return self.mask is not None and bool(self.mask.requires_grad)


@dataclass(frozen=True, slots=True)
class Attention:
    """``scaled_dot_product_attention`` on one card."""

    card: Card
    runner: OperatorRunner

    def put_in_place(self) -> None:
        """Takes the place of PyTorch's own, which asks a driver which kernel to run."""
        plain = torch.nn.functional.scaled_dot_product_attention

        def scaled_dot_product_attention(query: Any, *more: Any, **options: Any) -> Any:
            if not self.runner.is_on_card(query):
                return plain(query, *more, **options)
            call = _call_of(query, *more, **options)
            return self._run(self._cast(call))

        import torch.nn.functional as functional

        functional.scaled_dot_product_attention = scaled_dot_product_attention
        torch._C._nn.scaled_dot_product_attention = scaled_dot_product_attention

    def _cast(self, call: AttentionCall) -> AttentionCall:
        """In the type that autocast runs it in (aten/src/ATen/autocast_mode.h: lower precision)."""
        if not torch.is_autocast_enabled("cuda"):
            return call
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value, mask = (
            tensor if tensor is None or not tensor.is_floating_point() else tensor.to(dtype)
            for tensor in (call.query, call.key, call.value, call.mask)
        )
        return replace(call, query=query, key=key, value=value, mask=mask)

    def _run(self, call: AttentionCall) -> Any:
        if not call.is_fusible:
            return self._math(call)
        if self._takes_cudnn(call):
            return self._cudnn(call)
        if self._takes_flash(call):
            return self._flash(call)
        if self._takes_efficient(call):
            return self._efficient(call)
        return self._math(call)

    def _takes_cudnn(self, call: AttentionCall) -> bool:
        """First on Hopper and Blackwell (check_prefer_cudnn_attention; amp)."""
        is_preferred = self.card.capability in ((9, 0), (10, 0))
        most_width = _MOST_ON_HOPPER if self.card.capability == (9, 0) else _MOST_CUDNN_WIDTH
        fits = call.width <= most_width and call.width % 8 == 0 and call.has_one_width
        learns_mask = call.learns_mask and torch.is_grad_enabled()
        cuda: Any = torch.backends.cuda
        return bool(
            call.is_half and is_preferred and fits and not learns_mask and cuda.cudnn_sdp_enabled()
        )

    def _takes_flash(self, call: AttentionCall) -> bool:
        is_able = self.card.capability >= (8, 0) and call.is_half and call.mask is None
        fits = call.width <= _MOST_FLASH_WIDTH and call.has_one_width
        cuda: Any = torch.backends.cuda
        return bool(is_able and fits and cuda.flash_sdp_enabled())

    def _takes_efficient(self, call: AttentionCall) -> bool:
        alignment = 8 if call.is_half else 4
        is_aligned = call.width % alignment == 0 and call.value.shape[-1] % alignment == 0
        is_double = call.query.dtype is torch.float64
        cuda: Any = torch.backends.cuda
        is_enabled = cuda.mem_efficient_sdp_enabled()
        return bool(is_aligned and not call.is_grouped and not is_double and is_enabled)

    def _math(self, call: AttentionCall) -> Any:
        with torch.autocast(
            "cuda", enabled=False
        ):  # it computes in 32 bits, and autocast is off in it
            return torch.ops.aten._scaled_dot_product_attention_math(
                call.query,
                call.key,
                call.value,
                call.mask,
                call.dropout,
                call.is_causal,
                None,
                scale=call.scale,
                enable_gqa=call.is_grouped,
            )[0]

    def _cudnn(self, call: AttentionCall) -> Any:
        mask = call.mask
        if mask is not None and mask.dtype is torch.bool:
            mask = _as_numbers(mask, call.query.dtype)
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            call.query,
            call.key,
            call.value,
            mask,
            call.needs_gradient,
            call.dropout,
            call.is_causal,
            False,
            scale=call.scale,
        )[0]

    def _flash(self, call: AttentionCall) -> Any:
        width = call.width
        scale = width**-0.5 if call.scale is None else call.scale
        inputs = [call.query, call.key, call.value]
        padding = -width % 8
        if padding:  # pad_last_dim<8>
            inputs = [torch.nn.functional.pad(tensor, (0, padding)) for tensor in inputs]
        output = torch.ops.aten._scaled_dot_product_flash_attention(
            *inputs, call.dropout, call.is_causal, False, scale=scale
        )[0]
        return output[..., :width] if padding else output

    def _efficient(self, call: AttentionCall) -> Any:
        mask = call.mask
        if mask is not None:
            mask = self._as_bias(mask, call.query, call.key)
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            call.query,
            call.key,
            call.value,
            mask,
            call.needs_gradient,
            call.dropout,
            call.is_causal,
            scale=call.scale,
        )[0]

    def _as_bias(self, mask: Any, query: Any, key: Any) -> Any:
        """A mask as numbers to add, its rows apart by a multiple of 8 (preprocess_mask in
        attention.cpp; ``bart_summaries``).
        """
        if mask.dtype is torch.bool:
            mask = _as_numbers(mask, query.dtype)
        *apart, between = mask.stride()
        if between != 1 or any(stride % _ALIGNED for stride in apart):
            length = mask.shape[-1]
            mask = torch.nn.functional.pad(mask, (0, _ALIGNED - length % _ALIGNED))[..., :length]
        return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _as_numbers(mask: Any, dtype: Any) -> Any:
    """A mask of booleans as numbers to add (convert_boolean_attn_mask in attention.cpp)."""
    minus_infinity, zero = (
        torch.scalar_tensor(number, dtype=dtype, device=mask.device) for number in (-math.inf, 0.0)
    )
    return torch.where(mask, zero, minus_infinity)


def _call_of(  # noqa: PLR0913 - PyTorch's own parameters
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    return AttentionCall(
        query=query,
        key=key,
        value=value,
        mask=attn_mask,
        dropout=dropout_p,
        is_causal=is_causal,
        scale=scale,
        is_grouped=enable_gqa,
    )


def _efficient_backward(call: KernelCall) -> list[int]:
    query = call.args[1]
    batch, heads, length, width = query.shape
    wide, rows = query.numel() * 4, batch * heads * length * 4
    delta = [wide, rows, rows, -rows, -wide] if query.element_size() == 4 else [rows]
    blocks = math.ceil(length / 64) * math.ceil(width / 64)
    workspace = batch * heads * blocks * (64 * 64 * 4 + 16)
    return [*_copied_gradient(call), *delta, workspace]


def _flash_backward(call: KernelCall) -> list[int]:
    query, key = call.args[1], call.args[2]
    batch, heads, length, width = query.shape
    rounded, wide = -(-length // 128) * 128, -(-width // 32) * 32
    sums = [batch * heads * rounded * 4, batch * rounded * heads * wide * 4]
    is_ordered = query.transpose(1, 2).is_contiguous()  # the output lies as the query does
    copied = [] if is_ordered else [call.args[4].nbytes]
    return [*_copied_gradient(call), *copied, *sums, *_gradients_by_head(query, key)]


def _copied_gradient(call: KernelCall) -> list[int]:
    gradient = call.args[0]
    return [] if gradient.transpose(1, 2).is_contiguous() else [gradient.nbytes]


def _gradients_by_head(query: Any, key: Any) -> list[int]:
    """Of keys and values for each head of the query, where several share one."""
    heads, own_heads = query.shape[1], key.shape[1]
    return [] if heads == own_heads else [heads // own_heads * key.nbytes] * 2


def _cudnn_backward(call: KernelCall) -> list[int]:
    gradient, query, key, _, output = call.args[:5]
    batch, heads, length, width = query.shape
    workspace = batch * heads * length * (width + 1) * 4 + 256
    by_head = sum(_gradients_by_head(query, key))
    copied = [] if gradient.stride() == output.stride() else [gradient.nbytes]
    return [*copied, workspace + by_head]


RULES: dict[str, Rule] = {
    "aten._scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten._scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten._scaled_dot_product_cudnn_attention": lambda call: [256],
    "aten._scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
