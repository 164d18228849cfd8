"""``flex_attention``: as its compiled kernel, which never makes the scores.

It returns the output and each row's log-sum-exp in float32, saves both with its inputs, and its
backward holds one more number for each row (torch/_inductor/kernel/flex/flex_attention.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.prediction.card.patched_tensors import after_import

if TYPE_CHECKING:
    from vramlens.prediction.tensors.shapes import OperatorRunner

AS_COMPILED = "flex_attention: predicted as its compiled kernel"


def put_flexible_attention(runner: OperatorRunner) -> None:
    """Makes ``flex_attention`` ask for what its compiled kernel asks for; for good."""

    def change(module: Any) -> None:
        plain = module.flex_attention
        kernel = _kernel()

        def flex_attention(query: Any, key: Any, value: Any, *more: Any, **options: Any) -> Any:
            if not runner.is_on_card(query):
                return plain(query, key, value, *more, **options)
            runner.notes[AS_COMPILED] = None
            output, row_sums = kernel.apply(query, key, value)
            if options.get("return_aux") is not None:
                return output, module.AuxOutput(lse=row_sums, max_scores=row_sums)
            wants_sums = more[4] if len(more) > 4 else options.get("return_lse", False)
            return (output, row_sums) if wants_sums else output

        module.flex_attention = flex_attention

    after_import("torch.nn.attention.flex_attention", change)


def _kernel() -> Any:
    import torch

    class Flexible(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, query: Any, key: Any, value: Any) -> Any:
            output = query.new_empty((*query.shape[:-1], value.shape[-1]))
            row_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
            context.save_for_backward(query, key, value, output, row_sums)
            context.mark_non_differentiable(row_sums)
            return output, row_sums

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            query, key, value, _, row_sums = context.saved_tensors
            _products = torch.empty_like(row_sums)
            return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    return Flexible
