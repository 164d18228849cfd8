"""``torch.distributed`` without peers: one rank of a torchrun program runs alone.

What makes requests is PyTorch itself: the reducer of DistributedDataParallel
(torch/csrc/distributed/c10d/reducer.cpp), FSDP2 (torch/distributed/fsdp/_fully_shard) and DTensor
run as they are, on PyTorch's own fake process group; only the collectives are stood in for.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.prediction.refusals import Refused

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


_WANTS_RANKS = (
    "the script is one of several ranks: say how many with `vramlens predict --world-size N`"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in the job that is predicted.

    Attributes:
        rank: its number.
        world_size: how many there are; all on one host.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"--rank {self.rank}: ranks go from 0 to {self.world_size - 1}")

    @property
    def environment(self) -> dict[str, str]:
        """The variables that torchrun gives this rank."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "predicted",
        }


def put_process_group(place: Place | None) -> None:
    """Makes ``torch.distributed`` that of one rank whose peers are not there; for good.

    Args:
        place: the rank; None: the program is one process, and wanting ranks is refused.
    """
    core: Any = torch._C
    core._get_accelerator = lambda: torch.device("cuda")
    workers: Any = torch.multiprocessing
    workers.spawn = workers.start_processes = _refuse_spawn
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    if place is not None:
        os.environ.update(place.environment)
    _put_fake_group(c10d, place or Place(), is_alone=place is None)
    _put_object_collectives(c10d)
    if place is not None:
        _keep_shape_questions_aside()
    _stop_timers()


def _put(c10d: Any, **functions: Any) -> None:
    for module in (c10d, torch.distributed):
        for name, function in functions.items():
            setattr(module, name, function)


def _put_fake_group(c10d: Any, place: Place, *, is_alone: bool) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    begin, make_group = c10d.init_process_group, c10d._new_process_group_helper

    def init_process_group(*args: Any, timeout: Any = None, **options: Any) -> None:
        if is_alone and int(options.get("world_size", os.environ.get("WORLD_SIZE", 0))) != 1:
            raise Refused(_WANTS_RANKS)
        begin(
            "fake",
            store=FakeStore(),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )

    def new_process_group_helper(
        size: Any, rank: Any, ranks: Any, backend: Any, store: Any, *more: Any, **options: Any
    ) -> Any:
        options["backend_options"] = None
        options.pop("device_id", None)
        return make_group(size, rank, ranks, "fake", store, *more[:1], **options)

    c10d._new_process_group_helper = new_process_group_helper
    _put(
        c10d,
        init_process_group=init_process_group,
        get_backend=lambda group=None: "nccl",
        is_nccl_available=lambda: True,
        is_torchelastic_launched=lambda: True,
        _verify_params_across_processes=lambda *args: None,  # peers have the same
    )


def _keep_shape_questions_aside() -> None:
    """Has DTensor ask for the shapes of its results without requests.

    It runs each operator once on whole tensors without memory
    (torch/distributed/tensor/_sharding_prop.py, _propagate_tensor_meta_non_cached).
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.utils._python_dispatch import _disable_current_modes

    def aside(ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def asked(*args: Any, **options: Any) -> Any:
            with _disable_current_modes():
                return ask(*args, **options)

        return asked

    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
        ask = getattr(ShardingPropagator, name, None)
        if ask is not None:
            setattr(ShardingPropagator, name, aside(ask))


def note_bucket_views(notes: dict[str, int | None]) -> None:
    """Has DistributedDataParallel note what may live longer than predicted.

    With ``gradient_as_bucket_view`` the first step's bucket is given up when buckets are made anew
    (reducer.cpp, rebuild_buckets), and NCCL keeps it until its reduction is over: on a rank that
    never waits for the GPU that is after the next ones are there.
    """
    if not torch.distributed.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    wrapper: Any = DistributedDataParallel
    begin = wrapper.__init__

    @functools.wraps(begin)
    def begun(model: Any, *args: Any, **options: Any) -> None:
        begin(model, *args, **options)
        if model.gradient_as_bucket_view:
            parameters = (weight for weight in model.parameters() if weight.requires_grad)
            size = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
            notes["DDP's first bucket, while its reduction is under way"] = size

    wrapper.__init__ = begun


def _stop_timers() -> None:
    """Keeps DistributedDataParallel from timing itself by events of a device that is not there.

    It begins to count its forwards, and with them to time, in ``prepare_for_forward``
    (reducer.cpp); a build without CUDA has no timer, and goes on without.
    """
    distributed: Any = torch.distributed
    reducer, logger = distributed.Reducer, distributed.Logger
    cuda: Any = torch.backends.cuda
    logger.set_runtime_stats_and_log = lambda logger: None
    if cuda.is_built():
        reducer.prepare_for_forward = lambda reducer: None


def _put_object_collectives(c10d: Any) -> None:
    """Collectives of Python objects: every rank is taken to hold this one's."""

    def all_gather_object(object_list: Any, obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: Any = None, *more: Any, **options: Any) -> None:
        if object_gather_list:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list: Any, *more: Any, **options: Any) -> None:
        """This rank's objects are taken for the source's."""

    def scatter_object_list(
        scatter_object_output_list: Any,
        scatter_object_input_list: Any = None,
        *more: Any,
        **options: Any,
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[0]

    _put(
        c10d,
        all_gather_object=all_gather_object,
        gather_object=gather_object,
        broadcast_object_list=broadcast_object_list,
        scatter_object_list=scatter_object_list,
    )


def _refuse_spawn(*args: Any, **options: Any) -> None:
    raise Refused("the script starts its own ranks: write it for torchrun and say `--world-size N`")
