"""What keeps libraries from seeing that tensors are shapes: they would take the path of a trace.

transformers' ``is_tracing`` asks for ``torch._subclasses.FakeTensor`` and then makes an attention
mask that a run leaves out (transformers/utils/import_utils.py, masking_utils.py: ``fsdp2_llama``
held one more activation a layer so). PyTorch's own modules have the class by its full name; one that
has not asks for a tensor's device (torch/_meta_registrations.py, device_hint).
"""

from __future__ import annotations

import types
from typing import Any


def hide_shapes(torch: Any) -> None:
    """Makes ``torch._subclasses.FakeTensor`` a kind that no tensor is of; for good."""
    fake_tensor = torch._subclasses.fake_tensor.FakeTensor
    device_hint = torch._meta_registrations.device_hint

    def device_hint_of(tensor: Any) -> Any:
        is_shape = isinstance(tensor, fake_tensor)
        return tensor.fake_device.type if is_shape else device_hint(tensor)

    torch._subclasses.FakeTensor = types.new_class("NoTensor", (fake_tensor,))
    torch._meta_registrations.device_hint = device_hint_of
