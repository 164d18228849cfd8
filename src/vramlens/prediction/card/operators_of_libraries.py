"""torchvision's operators where its compiled library cannot be loaded: one that was built for a GPU,
beside a build of PyTorch without CUDA.

Their schemas are those of torchvision/csrc/ops; torchvision has their shapes
(torchvision/_meta_registrations.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_STEPS = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h,"
    " SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_DEFORMED = "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOLED}, {_SHAPE}, int sampling_ratio,"
    " bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_SHAPE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED},"
    f" int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED},"
    f" {_SHAPE}) -> Tensor",
    f"deform_conv2d({_DEFORMED}, {_STEPS}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORMED}, {_STEPS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "_cuda_version() -> int",
)

_kept: list[Any] = []


def put_operators_of_libraries(torch: Any) -> None:
    """Makes a library of torchvision's that cannot be loaded be one of shapes; for good."""
    plain = torch.ops.load_library

    def load_library(path: Any) -> None:
        try:
            plain(path)
        except OSError:
            if not _is_known(Path(path)):
                raise
            _define(torch)

    torch.ops.load_library = load_library


def _is_known(library: Path) -> bool:
    """Whether a library is that of a torchvision with shapes of these operators and no others."""
    shapes = library.with_name("_meta_registrations.py")
    is_torchvisions = library.parent.name == "torchvision" and library.stem.startswith("_C")
    if not is_torchvisions or not shapes.is_file():
        return False
    pattern = r"""(?:register_meta\("|"torchvision::)(\w+)"""
    names = set(re.findall(pattern, shapes.read_text(encoding="utf-8")))
    return names <= {schema.partition("(")[0] for schema in _SCHEMAS}


def _define(torch: Any) -> None:
    if _kept:
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    _kept.append(library)
    operators = torch.ops.torchvision

    def register(name: str, backward: Any, setup: Any) -> None:
        torch.library.register_autograd(
            f"torchvision::{name}", backward, setup_context=setup, lib=library
        )

    def of_aligned(context: Any, gradient: Any) -> Any:
        pooled, sampled = context.options[:3], context.options[3:]
        of_input = operators._roi_align_backward(
            gradient, *context.saved_tensors, *pooled, *context.shape, *sampled
        )
        return (of_input, *[None] * 6)

    def of_pooled(context: Any, gradient: Any, _: Any) -> Any:
        rois, positions = context.saved_tensors
        of_input = operators._roi_pool_backward(
            gradient, rois, positions, *context.options, *context.shape
        )
        return (of_input, *[None] * 4)

    def of_deformed(context: Any, gradient: Any) -> Any:
        gradients = operators._deform_conv2d_backward(
            gradient, *context.saved_tensors, *context.options
        )
        return (*gradients, *[None] * len(context.options))

    register("roi_align", of_aligned, _save_rois)
    register("roi_pool", of_pooled, _save_pooled)
    register("deform_conv2d", of_deformed, _save_all)


# PyTorch names the arguments of these: ctx, inputs, output.
def _save_rois(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.shape, ctx.options = inputs[0].shape, inputs[2:]


def _save_pooled(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1], output[1])
    ctx.shape, ctx.options = inputs[0].shape, inputs[2:]


def _save_all(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]
