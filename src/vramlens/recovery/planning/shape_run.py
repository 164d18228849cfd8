"""A forward with shapes only: what each block of a model would make and take on GPUs, and what
has to be together.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MOST_VALUES_BYTES = 32 << 20
"""Of a tensor that keeps its values: ids, masks, positions."""


def run_with_shapes(model: Any, parts: dict[str, Any], batch: Any, run: ShapeRun) -> None:
    """Fills ``run`` with a forward of ``batch``: a copy of the modules, with stand-ins that have
    shapes and no data.

    Args:
        parts: by their names, the modules and tensors of the model that stay whole.
    """
    from torch._subclasses import FakeTensorMode
    from torch.utils._pytree import tree_map

    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    twin = _twin(model, parts, shapes, run)
    plain = dict(batch) if isinstance(batch, Mapping) else batch
    inputs = tree_map(
        lambda leaf: _stand_in(leaf, shapes) if isinstance(leaf, torch.Tensor) else leaf, plain
    )
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        _attention_of_a_gpu(),
        _shapes_only(shapes, run),
    ):
        run.note([], tensors_in(inputs))
        run.finish(_call(twin, inputs))


class ShapeRun:
    """What each block makes and takes, by epochs: from where a block begins to where the next one
    does.

    Storages stand by their addresses: ``owner``, the block whose weights it is; ``home``, the block
    on whose device it was made (none where that is unknown); ``made``, in which epoch and how
    large; ``unknown``, whose values are not right any more.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.live, self.most, self.kept, self.inputs = [0], [0], [0], [0]
        self.owner: dict[int, str] = {}
        self.home: dict[int, str] = {}
        self.made: dict[int, tuple[int, int]] = {}
        self.unknown: set[int] = set()
        self.ties: list[tuple[str, str]] = []
        self._inside: list[int] = []
        self.output: list[int] = []

    def begins(self, name: str, module: Any, args: Any, kwargs: Any) -> None:
        """A block's forward; what the block just before it made is its input, all older things
        are kept.
        """
        for epoch in range(len(self.names) - 1):
            self.kept[epoch] = max(self.kept[epoch], self.live[epoch])
        if self.names:  # what is made before the first block counts as the first block's
            for figures in (self.live, self.most, self.kept, self.inputs):
                figures.append(0)
        self.names.append(name)
        self._inside.append(len(self.names) - 1)
        storages = self._made_of((args, kwargs)).values()
        self.inputs[-1] = sum(size for epoch, size in storages if epoch != len(self.names) - 1)

    def ends(self, name: str, module: Any, args: Any, output: Any) -> None:
        self._inside.pop()
        self.home.update({_key(tensor): name for tensor in tensors_in(output)})

    def finish(self, output: Any) -> None:
        """While the output is held."""
        self.kept = [
            max(kept_bytes, live) for kept_bytes, live in zip(self.kept, self.live, strict=True)
        ]
        storages = self._made_of(output).values()
        self.output = [
            sum(size for maker, size in storages if maker == epoch)
            for epoch in range(len(self.live))
        ]

    def note(self, given: list[Any], results: list[Any]) -> None:
        """An operation: weights have to be where it runs, and outside of blocks everything else
        as well.
        """
        epoch = self._inside[-1] if self._inside else max(0, len(self.names) - 1)
        places = list(self._places_of([_key(tensor) for tensor in given]))
        self.ties += [(places[0], other) for other in places[1:] if other != places[0]]
        for tensor in results:
            key = _key(tensor)
            if key in self.made or key in self.owner:
                continue
            self._make(key, epoch, tensor.untyped_storage())
            if places:
                self.home[key] = places[0]

    def _places_of(self, keys: list[int]) -> Iterator[str]:
        """The blocks that an operation ties together."""
        if self._inside:
            yield self.names[self._inside[-1]]
        yield from (self.owner[key] for key in keys if key in self.owner)
        if not self._inside:
            yield from (self.home[key] for key in keys if key in self.home)

    def where(self) -> str:
        return f"in {self.names[self._inside[-1]]}" if self._inside else "outside of its blocks"

    def _made_of(self, value: Any) -> dict[int, tuple[int, int]]:
        """The storages in a value, with the epochs that made them and their bytes."""
        return {key: self.made[key] for key in map(_key, tensors_in(value)) if key in self.made}

    def _make(self, key: int, epoch: int, storage: Any) -> None:
        size = -(-storage.nbytes() // 512) * 512  # as PyTorch's allocator rounds
        self.made[key] = epoch, size
        self.live[epoch] += size
        self.most[epoch] = max(self.most[epoch], self.live[epoch])
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        epoch, size = self.made.pop(key)
        self.live[epoch] -= size
        self.home.pop(key, None)
        self.unknown.discard(key)


def _twin(model: Any, parts: dict[str, Any], shapes: Any, run: ShapeRun) -> Any:
    """The model's modules once more, without its data: what a forward changes is not the
    model's.
    """
    stand_ins: dict[int, Any] = {}
    for module in model.modules():
        plain_tensors = [
            attribute for attribute in vars(module).values() if isinstance(attribute, torch.Tensor)
        ]
        for tensor in [*weights_of(module, recurse=False), *plain_tensors]:
            stand_ins.setdefault(id(tensor), _stand_in(tensor, shapes))
    for name, part in parts.items():
        for tensor in weights_of(part):
            run.owner.setdefault(_key(stand_ins[id(tensor)]), name)
    twin = copy.deepcopy(model, stand_ins)
    for name, part in parts.items():
        if not isinstance(part, torch.Tensor):
            inner = twin.get_submodule(name)
            inner.register_forward_pre_hook(functools.partial(run.begins, name), with_kwargs=True)
            inner.register_forward_hook(functools.partial(run.ends, name))
    return twin


def _stand_in(tensor: torch.Tensor, shapes: Any) -> torch.Tensor:
    """The same shape; the same values, too, where it is small and not a parameter."""
    is_small = (
        tensor.numel() * tensor.element_size() <= _MOST_VALUES_BYTES
        and tensor.device.type != "meta"
    )
    if is_small and not isinstance(tensor, torch.nn.Parameter):
        return tensor.detach().to("cpu", copy=True)
    with shapes:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def _shapes_only(shapes: Any, run: ShapeRun) -> Any:
    """A mode in which only what is small and known is computed: models look at masks and
    positions to choose a way.
    """
    from torch._subclasses import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    def is_small(function: Any, args: Any, kwargs: Any) -> bool:
        try:
            with shapes:
                outputs = tensors_in(function(*args, **kwargs))
        except RuntimeError:  # the shape follows from values
            return True
        return bool(
            sum(tensor.numel() * tensor.element_size() for tensor in outputs) <= _MOST_VALUES_BYTES
        )

    class ShapesOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("device") is not None:
                kwargs["device"] = torch.device("cpu")
            inputs = tensors_in((args, kwargs))
            is_known = not any(
                isinstance(tensor, FakeTensor) or _key(tensor) in run.unknown for tensor in inputs
            )
            if is_known and (
                getattr(function, "is_view", False) or is_small(function, args, kwargs)
            ):
                output = function(*args, **kwargs)
            else:
                with shapes:
                    output = function(*args, **kwargs)
                if _writes(function) and not isinstance(args[0], FakeTensor):
                    run.unknown.add(_key(args[0]))
                    output = args[0]
            run.note(inputs, tensors_in(output))
            return output

    return ShapesOnly()  # type: ignore[no-untyped-call]


def _writes(function: Any) -> bool:
    """Whether an operation changes its first argument."""
    arguments = getattr(getattr(function, "_schema", None), "arguments", ())
    written = arguments[0].alias_info if arguments else None
    return written is not None and bool(written.is_write)


def _takes_flash(query: Any, attn_mask: Any) -> bool:
    return (
        query.dtype in (torch.float16, torch.bfloat16)
        and attn_mask is None
        and query.shape[-1] <= 256
        and torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    )


def _takes_efficient(query: Any, enable_gqa: bool) -> bool:
    return (
        query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and not enable_gqa
        and torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    )


def _fused(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, enable_gqa: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """The output of a fused kernel, called as ``scaled_dot_product_attention``; None where PyTorch
    would choose none.
    """
    width = query.shape[-1]
    if query.dim() != 4 or width != key.shape[-1] or width * query.element_size() % 16:
        return None
    is_flash = _takes_flash(query, attn_mask)
    if not (is_flash or _takes_efficient(query, enable_gqa)):
        return None
    batch, heads, length, _ = query.shape
    sums = query.new_empty((batch, heads, length), dtype=torch.float32) if is_flash else None
    is_bias = attn_mask is not None and attn_mask.dtype is torch.bool
    bias = query.new_empty(attn_mask.shape) if is_bias else None
    output = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
    del sums, bias
    return output


def _attention_of_a_gpu() -> Any:
    """A mode in which attention takes what CUDA's fused kernels take (sdp_utils.cpp), where they
    would be chosen.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode

    class FusedAttention(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is not scaled_dot_product_attention:
                return function(*args, **(kwargs or {}))
            output = _fused(*args, **(kwargs or {}))
            if output is not None:
                return output
            with sdpa_kernel(SDPBackend.MATH):
                return function(*args, **(kwargs or {}))

    return FusedAttention()


def weights_of(part: Any, recurse: bool = True) -> list[Any]:
    """Parameters and buffers, each once."""
    return (
        [part]
        if isinstance(part, torch.Tensor)
        else [*part.parameters(recurse), *part.buffers(recurse)]
    )


def tensors_in(value: Any) -> list[Any]:
    """The tensors in tuples, lists and dicts: those that accelerate moves."""
    if isinstance(value, torch.Tensor):
        return [value] if value.layout is torch.strided else []
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, (Mapping, tuple, list)):
        return []
    return list(chain.from_iterable(map(tensors_in, parts)))


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _call(model: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (list, tuple)) else model(batch)
