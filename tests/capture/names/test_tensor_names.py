"""Names of live tensors: every storage of a model and its optimizer once, and nothing in the
process the worse for it.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import threading
import time
import types
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramlens.capture.names import holder_names  # noqa: E402
from vramlens.capture.names import tensor_names as names  # noqa: E402
from vramlens.capture.names.tensor_names import NamedTensor, named_tensors  # noqa: E402

nn = torch.nn
LARGE = (200, 200)  # 160,000 bytes: above what other tensors must have to be named


def test_the_last_percent_is_not_searched_for(monkeypatch):
    monkeypatch.setattr(names, "_WORTH_A_SEARCH", 0.5)
    model, kept = nn.Linear(3000, 3000), {"few": torch.zeros(*LARGE)}
    found = {one.address: one.name for one in named_tensors(device_type="cpu")}
    assert found[model.weight.untyped_storage().data_ptr()].endswith("weight")
    assert found[kept["few"].untyped_storage().data_ptr()] == "float32[200, 200] tensor"


@pytest.fixture(autouse=True)
def _only_this_tests_tensors(monkeypatch):
    monkeypatch.setattr(holder_names, "SEARCH_SECONDS", 60.0)
    monkeypatch.setattr(names, "_MOST_OTHERS", 100_000)
    monkeypatch.setattr(
        names, "_WORTH_A_SEARCH", 0.0
    )  # whatever other tests keep alive beside the few of these
    gc.collect()
    yield
    gc.collect()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("mask", torch.ones(16, 16), persistent=False)
        self.cache = {"k": torch.zeros(3), "v": [torch.zeros(5)]}

    def forward(self, x):
        return self.norm(self.linear(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(model, optimizer):
    model(torch.arange(8)).sum().backward()
    optimizer.step()


def trained(**settings):
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    train(model, optimizer)
    return model, optimizer


def look(**settings) -> dict[str, NamedTensor]:
    found = named_tensors(device_type="cpu", **settings)
    names = {tensor.name: tensor for tensor in found}
    assert len({(tensor.device, tensor.address) for tensor in found}) == len(found), (
        "a storage has two names"
    )
    return names


def name_of(tensor, **settings) -> str:
    address = tensor.untyped_storage().data_ptr()
    return next(
        (t.name for t in named_tensors(device_type="cpu", **settings) if t.address == address), ""
    )


def tensors_in(value: Any):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for below in value.values():
            yield from tensors_in(below)
    elif isinstance(value, (list, tuple)):
        for below in value:
            yield from tensors_in(below)


@pytest.mark.parametrize(
    "settings", [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True, "lr": torch.tensor(0.1)}]
)
def test_every_storage_of_model_and_optimizer_is_named_once_and_bytes_agree(settings) -> None:
    model, optimizer = trained(**settings)
    expected = {}
    gradients = [parameter.grad for parameter in model.parameters()]
    for tensor in tensors_in(
        [model.state_dict(), gradients, optimizer.state_dict(), list(model.buffers())]
    ):
        storage = tensor.untyped_storage()
        expected[storage.data_ptr()] = storage.nbytes()
    found = {tensor.address: tensor for tensor in look().values() if tensor.kind != "tensor"}
    assert {address: tensor.bytes for address, tensor in found.items()} == expected
    assert {tensor.device for tensor in found.values()} == {-1}


def test_the_scheme() -> None:
    model, optimizer = trained(lr=torch.tensor(0.1))
    names = look()
    assert names["model.blocks.1.linear.weight"].kind == "parameter"
    assert names["model.blocks.1.linear.weight"].bytes == 16 * 16 * 4
    assert names["model.blocks.1.norm.running_mean"].kind == "buffer"
    assert names["model.blocks.1.mask"].kind == "buffer"
    assert names["grad[model.blocks.1.linear.weight]"].kind == "gradient"
    assert names["optimizer.exp_avg[model.blocks.1.linear.weight]"].kind == "optimizer_state"
    assert names["optimizer.step[model.blocks.1.linear.weight]"].bytes == 4
    assert names["optimizer.lr[group 0]"].kind == "optimizer_state"
    assert names["model.blocks.1.cache['k']"].kind == "tensor"
    assert names["model.blocks.1.cache['v'][0]"].kind == "tensor"
    assert "model.embedding.weight" in names
    assert "model.head.weight" not in names, "tied weights have their first name"
    del model, optimizer


def test_roots_and_optimizers(monkeypatch) -> None:
    class Head(nn.Linear):
        pass

    model, optimizer = trained()
    other, second = Head(4, 4), Head(5, 5)
    others = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    other(torch.ones(4)).sum().backward()
    others.step()
    names = look()
    assert {"model.embedding.weight", "Head.weight", "Head_2.weight"} <= names.keys()
    assert "optimizer_2.momentum_buffer[Head.weight]" in names
    monkeypatch.setattr(sys.modules["__main__"], "critic", other, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "critic_optimizer", others, raising=False)
    names = look(root_names={id(second): "value"})
    assert {"model.embedding.weight", "critic.weight", "value.weight"} <= names.keys()
    assert "critic_optimizer.momentum_buffer[critic.weight]" in names
    assert "policy.embedding.weight" in look(root_names={id(model): "policy"})
    monkeypatch.delattr(sys.modules["__main__"], "critic")
    monkeypatch.setattr(sys.modules["__main__"], "model", other, raising=False)
    assert {"GPT.embedding.weight", "model.weight"} <= look().keys()
    del model, optimizer, second


def test_an_average_of_the_model_is_not_the_model() -> None:
    model, optimizer = trained()
    average = torch.optim.swa_utils.AveragedModel(model)
    names = look()
    assert {"model.embedding.weight", "AveragedModel.embedding.weight"} <= names.keys()
    assert names["model.embedding.weight"].address == model.embedding.weight.data_ptr()
    del average, optimizer


def test_wrappers_leave_no_trace() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = GPT()
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    compiled = torch.compile(nn.DataParallel(model), backend="eager")
    assert name_of(model.blocks[0].linear.weight) == "model.blocks.0.linear.weight"
    assert (
        name_of(model.blocks[0].linear.weight, root_names={id(model): "net"})
        == "net.blocks.0.linear.weight"
    )
    del compiled


def test_a_module_called_module_inside_of_a_model_keeps_its_name() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    model = nn.Sequential(Inner())
    assert name_of(model[0].module.weight) == "model.0.module.weight"


def test_rings_of_modules_have_names_and_end() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(3, 3)
    first.next, second.next = second, first
    assert name_of(first.weight)
    assert name_of(second.weight)


def test_storages_that_parameters_share() -> None:
    flat = torch.zeros(20)
    model = nn.Module()
    model.a, model.b = nn.Parameter(flat[:10].view(2, 5)), nn.Parameter(flat[10:])
    gradients = torch.zeros(20)
    model.a.grad, model.b.grad = gradients[:10].view(2, 5), gradients[10:]
    names = look()
    assert names["model.a and 1 more"].bytes == 80
    assert names["grad[model.a and 1 more]"].bytes == 80


def test_gradients_kept_beside_grad() -> None:
    model = nn.Linear(4, 4)
    model.weight.main_grad = torch.zeros(4, 4)
    assert name_of(model.weight.main_grad) == "grad[model.weight]"


def test_parameters_without_a_module() -> None:
    points = torch.randn(10, 3, requires_grad=True)
    colors = torch.randn(10, 3, requires_grad=True)
    optimizer = torch.optim.Adam([{"params": [points], "name": "xyz"}, {"params": [colors]}])
    (points * colors).sum().backward()
    optimizer.step()
    names = look()
    assert names["optimizer.params['xyz'][0]"].kind == "parameter"
    assert {
        "grad[optimizer.params['xyz'][0]]",
        "optimizer.exp_avg[params['xyz'][0]]",
    } <= names.keys()
    assert "optimizer.exp_avg[params[1][0]]" in names


def test_groups_of_one_name_are_told_apart() -> None:
    grids = [torch.randn(10, 3, requires_grad=True) for _ in range(3)]
    groups = [{"params": [grid], "name": "grid"} for grid in grids[:2]]
    optimizer = torch.optim.SGD([*groups, {"params": [grids[2]], "name": "rgb"}], lr=0.1)
    names = look()
    assert {f"optimizer.params[{label}][0]" for label in ("0", "1", "'rgb'")} <= names.keys()
    assert len(optimizer.param_groups) == 3


def test_nested_optimizer_state_and_attributes() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), history_size=3)
    x = torch.randn(8, 4)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.extra = (torch.zeros(7),)
    names = look()
    assert "optimizer.old_dirs[0][model.weight]" in names
    assert names["optimizer.extra[0]"].bytes == 28


def test_grad_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    assert {"grad_scaler._scale", "grad_scaler._growth_tracker"} <= look().keys()


def test_wrapping_optimizers() -> None:
    class ZeroOptimizer:  # as DeepSpeed's stages 1 and 2 lay it out (runtime/zero/stage_1_and_2.py)
        def __init__(self, model) -> None:
            flat = torch.cat([p.detach().flatten() for p in model.parameters()])
            self.bit16_groups_flat = [flat.bfloat16()]
            self.single_partition_of_fp32_groups = [flat.clone().requires_grad_()]
            self.averaged_gradients = {0: [torch.zeros(4)]}
            self.ipg_buckets = {"bf16": types.SimpleNamespace(buffer=[torch.zeros(9)], params=[])}
            self.optimizer = torch.optim.AdamW(self.single_partition_of_fp32_groups)
            self.single_partition_of_fp32_groups[0].grad = torch.zeros_like(flat)
            self.optimizer.step()

    model = nn.Linear(4, 4)
    optimizer = ZeroOptimizer(model)
    names = look()
    assert names["optimizer.bit16_groups_flat[0]"].kind == "parameter"
    assert names["optimizer.single_partition_of_fp32_groups[0]"].kind == "optimizer_state"
    assert names["optimizer.exp_avg[single_partition_of_fp32_groups[0]]"].kind == "optimizer_state"
    assert names["optimizer.averaged_gradients[0][0]"].kind == "gradient"
    assert names["optimizer.ipg_buckets['bf16'].buffer[0]"].kind == "gradient"
    assert "grad[optimizer.single_partition_of_fp32_groups[0]]" in names
    del optimizer


def test_parameters_that_deepspeed_has_partitioned() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight.ds_tensor, model.weight.ds_id = torch.zeros(8), 0
    model.weight.ds_tensor.ds_numel = 8
    names = look()
    assert names["model.weight"].bytes == 32
    assert names["model.weight (all-gathered)"].bytes == 64
    model.weight.data = torch.empty(0)
    assert "model.weight (all-gathered)" not in look()


class EMA:
    def __init__(self, shadow) -> None:
        self.shadow = shadow


class Layer:
    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys = torch.zeros(LARGE)


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer(), Layer()]


Batch = namedtuple("Batch", ["image"])
kept_by_module: list[Any] = []


class Registry:
    default = torch.zeros(LARGE)


def test_other_tensors_are_named_after_who_holds_them(monkeypatch) -> None:
    ema = EMA({"blocks.0.weight": torch.zeros(LARGE)})
    cache = Cache()
    monkeypatch.setattr(sys.modules["__main__"], "history", [torch.zeros(LARGE)], raising=False)
    kept_by_module.append(torch.zeros(LARGE))
    captured = torch.zeros(LARGE)
    batch = Batch(torch.zeros(LARGE))
    queue = OrderedDict(last=torch.zeros(LARGE))

    def hook():
        return captured

    def generate():
        inside = torch.zeros(LARGE)
        yield
        del inside

    generator = generate()
    next(generator)
    names = look()
    assert names["EMA.shadow['blocks.0.weight']"].kind == "tensor"
    assert "Cache.layers[1].keys" in names
    assert "history[0]" in names
    assert f"{__name__}.kept_by_module[0]" in names
    assert "Registry.default" in names
    assert any(name.endswith("hook.captured") for name in names)
    assert "local of generator generate()" in names
    assert "OrderedDict['last']" in names
    assert "Batch.image" in names
    kept_by_module.clear()
    del ema, cache, batch, queue, generator, hook


@functools.cache
def _bias(heads: int, length: int) -> Any:
    return torch.zeros(heads, length)


@functools.lru_cache(maxsize=8)
def _table(length: int) -> Any:
    return torch.zeros(200, length)


def test_results_in_a_cache_are_named_after_its_function() -> None:
    _bias(200, 301)
    _table(302)
    told = look()
    assert told["unlimited lru_cache of _bias()[tuple]"].bytes == 4 * 200 * 301
    assert told["lru_cache of _table()[...]"].bytes == 4 * 200 * 302
    _bias.cache_clear()
    _table.cache_clear()


def test_what_a_cycle_keeps_is_named_after_it() -> None:
    """It keeps all that its first pass gives, to give it again."""
    batches = itertools.cycle({"strong": torch.zeros(200, 301 + number)} for number in range(3))
    next(batches), next(batches)
    assert look()["itertools.cycle[1]['strong']"].bytes == 4 * 200 * 302


def test_a_tensor_that_only_a_running_function_holds_has_its_shape() -> None:
    activation = torch.zeros(8, 4096, dtype=torch.bfloat16)
    assert name_of(activation) == "bfloat16[8, 4096] tensor"
    leaf = torch.zeros(LARGE, requires_grad=True)
    leaf.sum().backward()
    leaf.grad = torch.zeros(LARGE)
    assert name_of(leaf.grad) == "grad[float32[200, 200] tensor]"


def test_a_slice_says_that_it_pins_more() -> None:
    logits = [torch.zeros(1000, 100)[:3].detach()]
    gc.collect()
    address = logits[0].data_ptr()
    found = next(t for t in look().values() if t.address == address)
    assert found.bytes == 400_000
    assert found.name == "list[0] (slice float32[3, 100])"


def test_tensors_of_the_program_have_their_shapes() -> None:
    class Scorer:
        pass

    scorer, column = Scorer(), torch.zeros(20_000, 1)
    scorer.pred, scorer.rest = column, torch.zeros(1000, 100)[:3].detach()
    scorer.layer = nn.Linear(200, 200)
    gc.collect()
    shapes = {tensor.name: tensor.shape for tensor in look().values()}
    assert shapes["Scorer.pred"] == "float32[20000, 1]"
    assert shapes["Scorer.rest (slice float32[3, 100])"] == ""  # most of it is not shown
    assert shapes["model.weight"] == ""


def test_results_that_have_a_graph_are_named_however_small_and_marked() -> None:
    model, stats = nn.Linear(200, 200), Cache()
    model.state, model.count = model(torch.ones(LARGE)), torch.ones(LARGE)
    stats.entries = {"loss": model(torch.ones(LARGE)).exp().sum(), "count": torch.ones(())}
    large = model(torch.ones(LARGE))
    by_address = {tensor.address: tensor for tensor in named_tensors(device_type="cpu")}

    def named(tensor: torch.Tensor) -> NamedTensor | None:
        return by_address.get(tensor.untyped_storage().data_ptr())

    loss = named(stats.entries["loss"])
    assert loss is not None
    assert (loss.name, loss.in_graph) == ("Cache.entries['loss']", True)
    of_module = [named(model.state), named(model.count)]
    assert [row and (row.name, row.in_graph) for row in of_module] == [
        ("model.state", True),
        ("model.count", None),
    ]
    assert named(stats.entries["count"]) is None
    for tensor, is_in_graph in ((large, True), (large.detach().clone(), None)):
        row = named(tensor)
        assert row is None or row.in_graph is is_in_graph
    weight = named(model.weight)
    assert weight is not None
    assert weight.in_graph is None  # a leaf


def test_buffers_and_gradients_that_a_graph_made_are_marked() -> None:
    """A running mean that nobody detached, and what backward(create_graph=True) leaves; a view of a
    parameter has a graph, too, and is none of these.
    """
    model = nn.Linear(200, 200)
    model.register_buffer("center", torch.zeros(200))
    model.center = 0.9 * model.center + 0.1 * model(torch.ones(LARGE)).mean(0)
    model.turned = model.weight.t()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cycle
        (model.weight.square().sum() / 2).backward(create_graph=True)
    flags = {tensor.name: tensor.in_graph for tensor in named_tensors(device_type="cpu")}
    assert flags["model.center"] is True
    assert flags["grad[model.weight]"] is True
    assert flags["model.weight"] is None
    model.weight.grad = None  # which leads back to itself


def test_small_others_are_left_out_and_devices_kept_apart() -> None:
    small = torch.zeros(10)
    assert not name_of(small)
    model = nn.Linear(2, 2)
    assert named_tensors(device_type="cuda") == []
    del model


def test_what_has_no_storage_is_skipped() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        fake = nn.Linear(4, 4)
        meta = nn.Linear(4, 4, device="meta")
        model = nn.Linear(4, 4, device="meta")
        model.sparse = torch.zeros(2)
        assert not [name for name in look() if "Registry" not in name]
    freed = nn.Linear(4, 4)
    freed.weight.untyped_storage().resize_(0)
    assert "model.weight" not in look()
    with torch.device("meta"):  # a mode that would move what is made under it
        assert "model.bias" in look(root_names={id(freed): "model"})
    sparse = nn.Parameter(torch.eye(3).to_sparse())
    freed.register_parameter("sparse", sparse)
    assert "model.bias" in look(root_names={id(freed): "model"})
    del fake, meta


class TwoParts(torch.Tensor):
    """A tensor made of others, as torchao and quantised tensors are: asking it anything is
    refused.
    """

    @staticmethod
    def __new__(cls, data, scale):
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)
        made.data_part, made.scale = data, scale
        return made

    def __tensor_flatten__(self):
        raise AssertionError("ran the user's code")

    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), settings=None):
        raise AssertionError("ran the user's code")

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), settings=None):
        raise AssertionError("ran the user's code")


def test_tensors_made_of_tensors() -> None:
    model = nn.Module()
    weight = TwoParts(torch.zeros(6, dtype=torch.int8), torch.zeros(2))
    model.register_buffer("weight", None)
    model._buffers["weight"] = weight
    names = look()
    assert names["model.weight.data_part"].bytes == 6
    assert names["model.weight.scale"].kind == "buffer"


def test_nothing_is_kept_alive() -> None:
    gc.disable()
    try:
        model, optimizer = trained()
        big = torch.zeros(LARGE)
        watched = [
            weakref.ref(t)
            for t in (big, model.embedding.weight, model.blocks[0].mask, model, optimizer)
        ]
        counts = [
            sys.getrefcount(big),
            sys.getrefcount(model.embedding.weight),
            sys.getrefcount(model),
        ]
        uses = torch._C._storage_Use_Count(big.untyped_storage()._cdata)
        assert look()
        assert counts == [
            sys.getrefcount(big),
            sys.getrefcount(model.embedding.weight),
            sys.getrefcount(model),
        ]
        assert uses == torch._C._storage_Use_Count(big.untyped_storage()._cdata)
        optimizer.state.clear()  # an optimizer and its hooks are a ring of their own
        del model, big
        optimizer.param_groups.clear()
        del optimizer
        assert [ref() for ref in watched[:4]] == [None] * 4
    finally:
        gc.enable()


def test_the_collector_stays_as_it_was() -> None:
    assert gc.isenabled()
    look()
    assert gc.isenabled()
    gc.disable()
    look()
    enabled = gc.isenabled()
    gc.enable()
    assert not enabled


def test_autograd_and_random_numbers_are_untouched() -> None:
    model, optimizer = trained()
    x = torch.arange(8)
    loss = model(x).sum()
    edges = [(n, f.name()) for f, n in loss.grad_fn.next_functions]
    state, versions = torch.get_rng_state(), [p._version for p in model.parameters()]
    grads = [id(p.grad) for p in model.parameters()]
    calls = []
    handle = loss.grad_fn.register_hook(lambda *_: calls.append("hook"))
    with torch.autograd.profiler.profile() as profile:
        look()
    assert not [event.name for event in profile.function_events], "an operator ran"
    assert torch.equal(state, torch.get_rng_state())
    assert versions == [p._version for p in model.parameters()]
    assert grads == [id(p.grad) for p in model.parameters()]
    assert edges == [(n, f.name()) for f, n in loss.grad_fn.next_functions]
    assert not calls
    loss.backward()
    assert calls == ["hook"]
    handle.remove()
    del optimizer


def test_inside_of_a_backward_pass() -> None:
    model = GPT()
    seen: list[dict[str, NamedTensor]] = []
    model.embedding.weight.register_hook(lambda _: seen.append(look()))
    model(torch.arange(8)).sum().backward()
    assert "grad[model.blocks.1.linear.weight]" in seen[0]


def ran(*_: object) -> Any:
    raise SystemExit("ran the user's code")


def hostile_class() -> Any:
    """Made in a function: pytest asks everything in a module for its attributes."""

    class HostileMeta(type):
        __hash__ = None
        __eq__ = __instancecheck__ = __subclasscheck__ = ran
        __name__ = __mro__ = __dict__ = property(ran)

        def __getattribute__(cls, name):
            ran()

    class Hostile(metaclass=HostileMeta):
        __class__ = __dict__ = value = property(ran)
        __hash__ = __eq__ = __repr__ = __str__ = __len__ = __iter__ = __bool__ = ran

        def __getattr__(self, name):
            ran()

        def __getattribute__(self, name):
            ran()

    return Hostile


class HostileDict(dict):
    __iter__ = items = keys = values = __getitem__ = __len__ = __repr__ = ran


class Liar:
    """Says that it is a tensor, and a module."""

    def __init__(self, kind) -> None:
        self._kind = kind

    @property
    def __class__(self):
        ran()


armed = False


class HostileModule(nn.Linear):
    """A module whose attributes are all computed."""

    def __getattribute__(self, name):
        if name in ("weight", "bias", "_parameters", "_buffers", "_modules", "__dict__") and armed:
            ran()
        return super().__getattribute__(name)

    def named_parameters(self, *_, **__):
        ran()


def test_hostile_objects_harm_nothing() -> None:
    global armed
    module = HostileModule(4, 4)
    module.odd = HostileDict(tensor=torch.zeros(LARGE))
    hostile = object.__new__(hostile_class())
    module.odder = [hostile, Liar(torch.Tensor)]
    target = EMA(torch.zeros(3))
    heap = [
        hostile,
        HostileDict(a=torch.zeros(LARGE)),
        weakref.proxy(target),
        Liar(nn.Module),
        types.SimpleNamespace(),
    ]
    half = nn.Module.__new__(nn.Module)  # before __init__
    broken = torch.optim.SGD.__new__(torch.optim.SGD)
    broken.state = broken.param_groups = None
    armed = True
    try:
        names = look()
    finally:
        armed = False
    assert {"model.weight", "model.odd['tensor']", "list[1]['a']"} <= names.keys()
    del heap, half, target


def test_frozen_heaps() -> None:
    model = kept_by_module
    model.append(nn.Linear(4, 4))
    gc.freeze()
    try:
        assert name_of(model[0].weight) == "model.weight"
    finally:
        gc.unfreeze()
        model.clear()


def test_while_other_threads_go_on() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            model, optimizer = trained()
            del model, optimizer

    thread = threading.Thread(target=churn)
    model = nn.Linear(300, 300)
    thread.start()
    try:
        for _ in range(3):
            assert name_of(model.weight, root_names={id(model): "mine"}) == "mine.weight"
    finally:
        stop.set()
        thread.join()


def test_time_on_a_heap_of_a_million_objects(capsys) -> None:
    heap = [{"a": [index], "b": (index, [])} for index in range(250_000)]
    others = [torch.zeros(LARGE) for _ in range(20)]
    trained_pair = trained()
    count = len(gc.get_objects())
    began = time.process_time()
    names = look()
    seconds = time.process_time() - began
    with capsys.disabled():
        print(f"\n{count:,} objects, {len(names)} names: {seconds:.2f} s")
    assert count > 750_000
    assert seconds < 10
    del heap, others, trained_pair


def test_what_training_does_with_each_parameter() -> None:
    body, head, teacher = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 4)
    teacher.requires_grad_(False)
    tied = nn.Parameter(head.weight.detach())  # shares its storage with what the optimizer has
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    uses = {named.address: (named.kind, named.use) for named in named_tensors(device_type="cpu")}
    body(torch.zeros(1, 16)).sum().backward()
    assert uses[body.weight.data_ptr()] == ("parameter", "unstepped")
    assert uses[head.weight.data_ptr()] == uses[tied.data_ptr()] == ("parameter", "stepped")
    assert uses[teacher.weight.data_ptr()] == ("parameter", "frozen")
    del optimizer


@pytest.mark.parametrize(("rates", "use"), [((0.0, 0.1), "unstepped"), ((0.0, 0.0), "stepped")])
def test_a_group_that_does_not_learn_beside_one_that_does(
    rates: tuple[float, float], use: str
) -> None:
    """A warm-up begins with 0 in all groups."""
    body, head = nn.Linear(16, 16), nn.Linear(16, 4)
    groups = [
        {"params": [*module.parameters()], "lr": rate}
        for module, rate in zip((body, head), rates, strict=True)
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for group in optimizer.param_groups:  # as a scheduler does whose warm-up begins
        group["initial_lr"], group["lr"] = group["lr"], 0.0
    uses = {named.address: named.use for named in named_tensors(device_type="cpu")}
    assert uses[body.weight.data_ptr()] == use
    assert uses[head.weight.data_ptr()] == "stepped"
    del optimizer


def test_the_type_of_each_parameter() -> None:
    model, half = nn.Linear(16, 16), nn.Linear(16, 4).to(torch.bfloat16)
    running = torch.zeros(70_000)
    dtypes = {named.address: named.dtype for named in named_tensors(device_type="cpu")}
    assert dtypes[model.weight.data_ptr()] == "float32"
    assert dtypes[half.weight.data_ptr()] == "bfloat16"
    assert dtypes[running.data_ptr()] == ""


def test_without_an_optimizer_nobody_knows_what_is_trained() -> None:
    model = nn.Linear(16, 16)
    (use,) = {
        named.use
        for named in named_tensors(device_type="cpu")
        if named.address in (model.weight.data_ptr(), model.bias.data_ptr())
    }
    assert use == ""


class Turn:
    """What a coroutine waits for."""

    def __await__(self) -> Iterator[None]:
        yield


def test_calls_of_one_function_are_told_apart() -> None:
    def score() -> None:
        row = torch.zeros(LARGE)
        raise ValueError(row.shape)

    async def answer() -> None:
        state = torch.zeros(LARGE)
        await Turn()
        del state

    errors = []
    for _ in range(3):
        try:
            score()
        except ValueError as error:
            errors.append(error)
    waiting = [answer(), answer()]
    for coroutine in waiting:
        coroutine.send(None)
    names = {named.name for named in named_tensors(device_type="cpu")}
    assert {
        "local of score()",
        "local of score(), call 2",
        "local of score(), call 3",
        "local of coroutine answer()",
        "local of coroutine answer(), call 2",
    } <= names
    for coroutine in waiting:
        coroutine.close()
