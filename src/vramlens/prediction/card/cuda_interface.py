"""``torch.cuda`` as it is on the card that is predicted: what programs ask before, between and
after their steps.
"""

from __future__ import annotations

import contextlib
import copyreg
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vramlens.cards.known_cards import Card
from vramlens.prediction.card.operators_of_libraries import put_operators_of_libraries
from vramlens.prediction.card.patched_tensors import (
    hide_shapes,
    put_copied_parameters,
    put_copies_between_devices,
    put_lazy_layers,
    put_nested_tensors,
    put_tensor_types,
    put_tensors_of_data,
    put_tracing,
)
from vramlens.prediction.card.saved_files import put_saved_files
from vramlens.prediction.card.taken_as_eager import put_eager
from vramlens.prediction.kernels.attention import chosen_attention
from vramlens.prediction.kernels.ctc_loss import put_ctc_loss
from vramlens.prediction.kernels.encoder_layers import put_encoder_layers
from vramlens.prediction.kernels.flexible_attention import put_flexible_attention
from vramlens.prediction.kernels.formulas import put_formulas
from vramlens.prediction.kernels.recurrent import put_recurrent_layers
from vramlens.prediction.tensors.sampled_proposals import put_sampled_proposals

if TYPE_CHECKING:
    from vramlens.prediction.tensors.shapes import OperatorRunner

_ASIDE = 1
_RANDOM_STATE_BYTES = 16  # torch.cuda.get_rng_state: seed and offset


def behave_as(
    card: Card, runner: OperatorRunner, devices: int, limit_itself: Callable[[int], None]
) -> None:
    """Makes this process's PyTorch behave as on a card, one of several; for good.

    Args:
        card: the card.
        runner: runs operators with shapes.
        devices: how many cards the program finds.
        limit_itself: called with the bytes to which the program limits itself.
    """
    import torch
    from torch._subclasses import fake_tensor

    put_tensors_of_data(torch)
    fake_tensor.init_gpu_context = _constant(
        None
    )  # it would make a tensor on a GPU that is not there
    hide_shapes(torch)
    _put_device(torch, card, devices, runner)
    _put_streams(torch, runner)
    _put_random_state(torch)
    _put_memory_figures(torch, card, runner)
    _put_own_limit(torch, card, limit_itself)
    _put_tensor_methods(torch, runner)
    _put_optimizers()
    chosen_attention(card, runner).put_in_place()
    put_flexible_attention(runner)
    put_recurrent_layers(runner)
    put_ctc_loss(runner)
    put_formulas()
    put_encoder_layers(runner)
    put_copies_between_devices(torch)
    put_tensor_types(torch)
    put_nested_tensors(torch)
    put_copied_parameters(torch)
    put_saved_files(runner)
    put_tracing(torch)
    put_operators_of_libraries(torch)
    put_sampled_proposals()
    put_eager(runner)


def _put(module: Any, **functions: Any) -> None:
    for name, function in functions.items():
        setattr(module, name, function)


def _constant(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _waits(runner: OperatorRunner) -> Any:
    return lambda *args, **kwargs: runner.log.note_wait()


def _put_device(torch: Any, card: Card, devices: int, runner: OperatorRunner) -> None:
    properties = types.SimpleNamespace(
        name=card.name,
        major=card.capability[0],
        minor=card.capability[1],
        total_memory=card.total_bytes,
        multi_processor_count=card.processors,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        L2_cache_size=50 << 20,
        uuid="00000000-0000-0000-0000-000000000000",
    )
    _put(
        torch.cuda,
        _lazy_init=_constant(None),
        init=_constant(None),
        is_available=_constant(True),
        is_initialized=_constant(True),
        _is_compiled=_constant(True),
        device_count=_constant(devices),
        current_device=_constant(0),
        set_device=_constant(None),
        synchronize=_waits(runner),
        get_device_name=_constant(card.name),
        get_device_capability=_constant(card.capability),
        get_device_properties=_constant(properties),
        get_arch_list=_constant([f"sm_{card.capability[0]}{card.capability[1]}"]),
        is_bf16_supported=_constant(card.capability >= (8, 0)),
        can_device_access_peer=_constant(True),
        ipc_collect=_constant(None),
        is_current_stream_capturing=_constant(False),
        _exchange_device=_constant(0),
        _maybe_exchange_device=_constant(0),
        device=_DeviceContext,
        device_of=_DeviceContext,
    )
    _put(
        torch.accelerator,
        current_accelerator=_constant(torch.device("cuda")),
        is_available=_constant(True),
        device_count=_constant(devices),
        current_device_index=_constant(0),
        synchronize=_waits(runner),
        set_device_index=_constant(None),
    )
    if torch.version.cuda is None:
        torch.version.cuda = "13.0"
    torch.backends.cudnn.is_available = _constant(True)
    torch.backends.cudnn.version = _constant(91900)


class _DeviceContext:
    """``torch.cuda.device``: there is one."""

    def __init__(self, device: Any = None) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: Any) -> None:
        return None


def _put_streams(torch: Any, runner: OperatorRunner) -> None:
    streams: list[Any] = []

    class Stream:
        """A stream: what is asked for under it is its own pool."""

        def __init__(self, device: Any = None, priority: int = 0, **ids: Any) -> None:
            self.stream_id = len(streams)
            self.cuda_stream = self.stream_id
            self.device, self.device_index, self.device_type = torch.device("cuda", 0), 0, 1
            self.priority = priority
            streams.append(self)

        def synchronize(self) -> None:
            runner.log.note_wait()

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def wait_stream(self, stream: Any) -> None:
            """Nothing runs."""

        def wait_event(self, event: Any) -> None:
            """Nothing runs."""

        def record_event(self, event: Any = None) -> Any:
            return event or Event()

        def __enter__(self) -> Any:
            self._before = current[0]
            _use(self)
            return self

        def __exit__(self, *raised: Any) -> None:
            _use(self._before)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.stream_id == self.stream_id

        def __hash__(self) -> int:
            return self.stream_id

    class Event:
        """An event: always over."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.event_id = 0

        def record(self, stream: Any = None) -> None:
            """Nothing runs."""

        def wait(self, stream: Any = None) -> None:
            """Nothing runs."""

        def synchronize(self) -> None:
            runner.log.note_wait()

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: Any) -> float:
            return 1.0

    default = Stream()
    current = [default]

    def _use(stream: Any) -> None:
        current[0] = stream
        runner.log.stream = stream.stream_id

    @contextlib.contextmanager
    def use(stream: Any) -> Iterator[Any]:
        before = current[0]
        if stream is not None:
            _use(stream)
        try:
            yield stream
        finally:
            _use(before)

    _put(
        torch.cuda,
        Stream=Stream,
        Event=Event,
        stream=use,
        StreamContext=use,
        current_stream=lambda device=None: current[0],
        default_stream=_constant(default),
        set_stream=_use,
    )
    torch.Tensor.record_stream = lambda tensor, stream: runner.log.note_use(
        tensor, stream.stream_id
    )
    torch._C._cuda_getCurrentRawStream = _constant(0)  # which a build without CUDA lacks
    _put(torch.accelerator, current_stream=lambda device=None: current[0], set_stream=_use)


def _put_random_state(torch: Any) -> None:
    state = torch.zeros(_RANDOM_STATE_BYTES, dtype=torch.uint8)
    states = {
        "get_rng_state": _constant(state),
        "set_rng_state": _constant(None),
        "get_rng_state_all": _constant([state]),
        "set_rng_state_all": _constant(None),
    }
    _put(
        torch.cuda,
        manual_seed=_constant(None),
        manual_seed_all=_constant(None),
        seed=_constant(None),
        seed_all=_constant(None),
        initial_seed=_constant(0),
        **states,
    )
    _put(torch.cuda.random, **states)
    torch.Generator = _device_generator(torch)


def _device_generator(torch: Any) -> Any:
    """``torch.Generator`` where one for the GPU is one of the CPU that says otherwise."""
    real = torch.Generator

    class AnyGenerator(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real)

    class Generator(real, metaclass=AnyGenerator):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            generator = real.__new__(cls, "cpu")
            generator.claimed = torch.device(device)
            return generator

        def __init__(self, device: Any = "cpu") -> None:
            """The real one takes its device when it is made."""

        @property
        def device(self) -> Any:
            return self.claimed

    return Generator


def _put_memory_figures(torch: Any, card: Card, runner: OperatorRunner) -> None:
    log = runner.log

    def statistics(*args: Any, **kwargs: Any) -> dict[str, int]:
        figures: dict[str, int] = {}
        for kind in ("allocated", "active", "requested", "reserved"):
            for pool in ("all", "small_pool", "large_pool"):
                figures[f"{kind}_bytes.{pool}.current"] = log.allocated_bytes
                figures[f"{kind}_bytes.{pool}.peak"] = log.peak_bytes
        return {**figures, "num_alloc_retries": 0, "num_ooms": 0}

    def reset_peak(*args: Any, **kwargs: Any) -> None:
        log.peak_bytes = log.allocated_bytes

    def empty_cache(*args: Any) -> None:
        log.empty_cache()

    def settle(conf: str) -> None:
        log.conf = conf

    torch._C._accelerator_setAllocatorSettings = settle
    torch.cuda.memory._set_allocator_settings = settle
    functions = {
        "memory_allocated": lambda *args, **options: log.allocated_bytes,
        "max_memory_allocated": lambda *args, **options: log.peak_bytes,
        "memory_reserved": lambda *args, **options: log.allocated_bytes,
        "max_memory_reserved": lambda *args, **options: log.peak_bytes,
        "memory_stats": statistics,
        "reset_peak_memory_stats": reset_peak,
        "reset_accumulated_memory_stats": _constant(None),
        "empty_cache": empty_cache,
        "mem_get_info": lambda *args, **options: (
            max(0, card.total_bytes - log.allocated_bytes),
            card.total_bytes,
        ),
        "memory_summary": _constant(""),
    }
    _put(torch.cuda, **functions)
    _put(
        torch.cuda.memory,
        **functions,
        _record_memory_history=_constant(None),
        _dump_snapshot=_constant(None),
        _snapshot=_constant({"segments": [], "device_traces": [], "allocator_settings": {}}),
        memory_snapshot=_constant([]),
    )
    torch.cuda.memory_snapshot = _constant([])


def _put_own_limit(torch: Any, card: Card, limit_itself: Callable[[int], None]) -> None:
    fractions = [1.0]

    def set_fraction(fraction: float, device: Any = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        index = device if device is None or isinstance(device, int) else torch.device(device).index
        if index:
            return  # another card's
        fractions[0] = float(fraction)
        limit_itself(int(fractions[0] * card.total_bytes))

    for module in (torch.cuda, torch.cuda.memory):
        _put(
            module,
            set_per_process_memory_fraction=set_fraction,
            get_per_process_memory_fraction=lambda device=None: fractions[0],
        )


def _put_tensor_methods(torch: Any, runner: OperatorRunner) -> None:
    fake = runner.fake_tensor
    tolist, to_numpy, resize = torch.Tensor.tolist, torch.Tensor.numpy, torch.UntypedStorage.resize_

    def resized(storage: Any, size: int) -> Any:
        log = runner.log
        if storage.device.type == "meta" and log.owns(storage):
            storage_result = resize(storage, size)
            log.resized(storage, size)
            return storage_result
        return resize(storage, size)

    def as_real(tensor: Any) -> Any:
        return runner.read_back(tensor) if isinstance(tensor, fake) else tensor

    torch.Tensor.pin_memory = lambda tensor, device=None: tensor
    torch.Tensor.is_pinned = _constant(False)
    torch.Tensor.tolist = lambda tensor: tolist(as_real(tensor))
    torch.Tensor.numpy = lambda tensor, *, force=False: to_numpy(as_real(tensor), force=force)
    as_text = torch.Tensor.__format__
    torch.Tensor.__format__ = lambda tensor, form: (
        format(tensor.item(), form)
        if isinstance(tensor, fake) and tensor.dim() == 0
        else as_text(tensor, form)
    )
    storage_address = torch.UntypedStorage.data_ptr
    torch.UntypedStorage.data_ptr = lambda storage: (
        int(storage._cdata) if storage.device.type == "meta" else storage_address(storage)
    )
    torch.Tensor.data_ptr = _data_ptr(torch.Tensor.data_ptr, fake)
    torch.UntypedStorage.resize_ = resized
    torch.__future__.set_swap_module_params_on_conversion(True)
    put_lazy_layers(torch, lambda first, second: _swap(torch, first, second))


def _swap(torch: Any, first: Any, second: Any) -> None:
    """Exchanges two tensors behind their objects, as ``Module.to`` does; weak references to them
    do not matter here.
    """
    slots = [
        name
        for name in copyreg._slotnames(type(first))  # type: ignore[attr-defined]
        if hasattr(first, name) and hasattr(second, name)
    ]
    first.__class__, second.__class__ = second.__class__, first.__class__
    for name in slots:  # a DTensor's own tensor
        in_first, in_second = getattr(first, name), getattr(second, name)
        setattr(first, name, in_second)
        setattr(second, name, in_first)
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    torch._C._swap_tensor_impl(first, second)


def _data_ptr(real: Any, fake: Any) -> Any:
    """Addresses of tensors without memory: equal for views of one storage."""

    def data_ptr(tensor: Any) -> int:
        if not isinstance(tensor, fake):
            return int(real(tensor))
        return int(tensor.untyped_storage()._cdata) + int(tensor.storage_offset()) * int(
            tensor.element_size()
        )

    return data_ptr


def _put_optimizers() -> None:
    """Optimizers and gradient clipping go by groups of tensors, as on a GPU
    (torch/optim/optimizer.py).
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for kinds in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if FakeTensor not in kinds:
            kinds.append(FakeTensor)
