"""Attention as the kernel that the card would run: flash, memory-efficient or plain, with what each
keeps for backward.

Which one is chosen: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. What each returns and
saves: aten/src/ATen/native/transformers/cuda/attention.cu, whose shapes PyTorch has
    (torch/_meta_registrations.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.prediction.card.cards import Card

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import Runner
else:
    from vramlens.ground.late_torch import torch

_MOST_FLASH_WIDTH = 256
_MOST_CUDNN_WIDTH = 128


def chosen_attention(card: Card, runner: Runner) -> Attention:
    """Attention on a card."""
    return Attention(card, runner.fake_tensor)


@dataclass(frozen=True, slots=True)
class Attention:
    """``scaled_dot_product_attention`` on one card."""

    card: Card
    fake_tensor: Any

    def put_in_place(self) -> None:
        """Takes the place of PyTorch's own, which asks a driver which kernel to run."""
        plain = torch.nn.functional.scaled_dot_product_attention

        def scaled_dot_product_attention(
            query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
            scale: float | None = None, enable_gqa: bool = False,
        ) -> Any:  # fmt: skip
            if not isinstance(query, self.fake_tensor) or query.fake_device.type != "cuda":
                return plain(
                    query,
                    key,
                    value,
                    attn_mask,
                    dropout_p,
                    is_causal,
                    scale=scale,
                    enable_gqa=enable_gqa,
                )
            query, key, value = self._cast(query, key, value)
            return self._run(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

        import torch.nn.functional as functional

        functional.scaled_dot_product_attention = scaled_dot_product_attention
        torch._C._nn.scaled_dot_product_attention = scaled_dot_product_attention

    def _cast(self, *tensors: Any) -> Any:
        """In the type that autocast runs it in (aten/src/ATen/autocast_mode.h: lower precision)."""
        if not torch.is_autocast_enabled("cuda"):
            return tensors
        dtype = torch.get_autocast_dtype("cuda")
        return [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]

    def _run(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None,
        is_grouped: bool,
    ) -> Any:  # fmt: skip
        kernel = self._kernel(query, key, value, mask, is_grouped)
        if kernel == "math":
            return torch.ops.aten._scaled_dot_product_attention_math(
                query,
                key,
                value,
                mask,
                dropout,
                is_causal,
                None,
                scale=scale,
                enable_gqa=is_grouped,
            )[0]
        if kernel == "cudnn":
            return self._cudnn(query, key, value, mask, dropout, is_causal, scale)
        if kernel == "flash":
            return self._flash(query, key, value, dropout, is_causal, scale)
        return self._efficient(query, key, value, mask, dropout, is_causal, scale)

    def _kernel(self, query: Any, key: Any, value: Any, mask: Any, is_grouped: bool) -> str:
        cuda: Any = torch.backends.cuda
        if query.dim() != 4 or query.numel() == 0 or key.numel() == 0:
            return "math"
        is_half = query.dtype in (torch.float16, torch.bfloat16)
        width = query.shape[-1]
        if is_half and self._prefers_cudnn() and width <= _MOST_CUDNN_WIDTH and width % 8 == 0:
            needs_gradient = torch.is_grad_enabled() and mask is not None and mask.requires_grad
            if width == value.shape[-1] and not needs_gradient and cuda.cudnn_sdp_enabled():
                return "cudnn"
        has_flash = self.card.capability >= (8, 0) and is_half and mask is None
        if (
            has_flash
            and width <= _MOST_FLASH_WIDTH
            and width == value.shape[-1]
            and cuda.flash_sdp_enabled()
        ):
            return "flash"
        is_aligned = (
            width % (8 if is_half else 4) == 0 and value.shape[-1] % (8 if is_half else 4) == 0
        )
        is_wanted = (
            cuda.mem_efficient_sdp_enabled() and not is_grouped and query.dtype is not torch.float64
        )
        needs_mask_gradient = mask is not None and mask.requires_grad
        if is_aligned and is_wanted and not needs_mask_gradient:
            return "efficient"
        return "math"

    def _prefers_cudnn(self) -> bool:
        """Whether cuDNN's attention comes first: on Hopper and Blackwell
        (check_prefer_cudnn_attention; amp).
        """
        return self.card.capability in ((9, 0), (10, 0))

    def _cudnn(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        dropout: float,
        is_causal: bool,
        scale: float | None,
    ) -> Any:
        needs_gradient = torch.is_grad_enabled() and any(
            t.requires_grad for t in (query, key, value)
        )
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(
                mask.logical_not(), float("-inf")
            )
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, needs_gradient, dropout, is_causal, False, scale=scale
        )[0]

    def _flash(
        self, query: Any, key: Any, value: Any, dropout: float, is_causal: bool, scale: float | None
    ) -> Any:
        width = query.shape[-1]
        beyond = -width % 8
        if scale is None:
            scale = width**-0.5
        if beyond:  # pad_last_dim<8>
            query, key, value = (
                torch.nn.functional.pad(tensor, (0, beyond)) for tensor in (query, key, value)
            )
        output = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, is_causal, False, scale=scale
        )[0]
        return output[..., :width] if beyond else output

    def _efficient(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        dropout: float,
        is_causal: bool,
        scale: float | None,
    ) -> Any:
        needs_gradient = torch.is_grad_enabled() and any(
            t.requires_grad for t in (query, key, value)
        )
        if mask is not None:
            mask = self._as_bias(mask, query, key)
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs_gradient, dropout, is_causal, scale=scale
        )[0]

    def _as_bias(self, mask: Any, query: Any, key: Any) -> Any:
        """A mask as numbers to add, its rows at a multiple of 16 (preprocess_mask in
        attention.cpp).
        """
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(
                mask.logical_not(), float("-inf")
            )
        alignment = 16
        beyond = -mask.shape[-1] % alignment
        if beyond:
            mask = torch.nn.functional.pad(mask, (0, beyond))[..., : key.shape[2]]
        return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
