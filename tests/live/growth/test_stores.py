"""Which of several objects keeps what grew, and whether it has stopped."""

from __future__ import annotations

import functools
import queue
import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest

from vramlens import LeakWatch
from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import pace_of
from vramlens.live.growth.stores import _variables_on_the_way, all_lead_to_roots
from vramlens.live.leaks.leak_report import LiveLeak

torch = pytest.importorskip("torch")

_BYTES = 4 * 4096


def _only_leak(watch: LeakWatch) -> LiveLeak:
    (leak,) = watch.report().found
    assert leak.owner is not None
    return leak


@pytest.mark.parametrize(
    ("born", "steps", "is_steady"),
    [
        ([step for step in range(2, 57) if step % 5 < 2], 60, True),  # a burst in two steps
        (range(8, 57, 8), 72, False),  # the last two did not come
        (range(8, 65, 8), 72, True),
        (range(2, 58), 60, False),
        (range(6, 115, 6), 125, True),  # of many only the newest may be missing
        (range(6, 109, 6), 125, False),
    ],
)
def test_pause_at_the_end(born: Any, steps: int, is_steady: bool) -> None:
    pace = pace_of(dict.fromkeys(born, _BYTES), steps, Looks.at_every_step(steps))
    assert pace is not None
    assert pace.is_steady is is_steady


def test_ways_that_end() -> None:
    parents = {0: (-1, ""), 1: (0, ""), 2: (1, ""), 3: (4, ""), 4: (3, "")}
    assert all_lead_to_roots(parents, (2, 1))
    assert not all_lead_to_roots(parents, (2, 3))


class _Messages:
    def __init__(self) -> None:
        self.pending: dict[int, list[Any]] = defaultdict(list)

    def add(self, node: int) -> None:
        self.pending[node].append(torch.zeros(4096))


def test_a_list_for_each_key_is_one_store() -> None:
    messages, chance, watch = _Messages(), random.Random(0), LeakWatch()
    for _ in range(40):
        for _ in range(3):
            messages.add(chance.randrange(12))
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.name == "_Messages.pending[...]"
    assert leak.bytes_per_step == pytest.approx(3 * _BYTES, rel=0.05)


class _Sessions:
    def __init__(self) -> None:
        self.by_user: dict[str, list[Any]] = {}

    def remember(self, user: str) -> None:
        history = self.by_user.setdefault(user, [])
        history.append(torch.zeros(4096))


_USERS = 6


@pytest.mark.parametrize(
    "users_of",
    [
        lambda step: range(_USERS),
        lambda step: (step % _USERS, (step + 1) % _USERS),
        lambda step: (0, 1, 2 + step // 2 % 4 if step < 20 else 3),  # others come no more
        lambda step: range(2),
    ],
    ids=["in each step", "in turns", "some stop", "two"],
)
def test_all_lists_of_a_dict_are_one_owner(users_of: Callable[[int], Iterable[int]]) -> None:
    sessions, watch = _Sessions(), LeakWatch()
    for step in range(30):
        for user in users_of(step):
            sessions.remember(f"user{user}")
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.name == "_Sessions.by_user[...]"
    assert leak.owner.source == "history.append(torch.zeros(4096))"
    assert leak.bytes >= 0.9 * 30 * _BYTES * len(list(users_of(0)))
    assert "limit _Sessions.by_user[...] (a deque(maxlen=...))" in (leak.fix or "")


def test_lists_that_come_anew_are_the_dict_s() -> None:
    sessions, watch = _Sessions(), LeakWatch()
    for step in range(40):
        sessions.remember(f"user{step // 5}")
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.name == "_Sessions.by_user"
    assert leak.owner.source == "history.append(torch.zeros(4096))"


class _Keeper:
    def __init__(self) -> None:
        self.saved: list[Any] = []
        self.newest: Any = None

    def offer(self) -> list[Any]:
        self.saved.append([torch.zeros(4096)])
        return self.saved[-2:]

    def replace(self) -> None:
        if self.newest is not None:
            self.saved.append(self.newest)
        self.newest = [torch.zeros(4096)]


def test_parts_that_a_variable_holds_too() -> None:
    keeper, watch, best = _Keeper(), LeakWatch(), []
    for step in range(1, 76):
        if step % 8 == 0:
            best = keeper.offer()
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.name == "_Keeper.saved"
    assert leak.bytes_per_step == _BYTES // 8
    assert len(best) == 2


def test_the_list_of_all_but_the_newest() -> None:
    """Thirty times: the interpreter shows a line that ran some twenty times, whichever are traced."""
    keeper, watch = _Keeper(), LeakWatch()
    for step in range(179):
        if step % 6 == 0:
            keeper.replace()
        watch.step()
    leak = _only_leak(watch)
    assert (leak.owner.name, leak.owner.kind) == ("_Keeper.saved", "list")
    assert leak.owner.source == "self.saved.append(self.newest)"


class _Broker:
    def __init__(self) -> None:
        self.ready: queue.Queue[Any] = queue.Queue(4)
        self.in_flight: dict[int, Any] = {}

    def get(self, number: int) -> None:
        self.in_flight[number] = self.ready.get()

    def acknowledge(self, tag: str) -> None:
        self.in_flight.pop(tag, None)  # type: ignore[call-overload]


def _produce(broker: _Broker, count: int) -> None:
    for _ in range(count):
        broker.ready.put(torch.zeros(4096))


def test_what_another_thread_makes_ahead() -> None:
    broker, watch = _Broker(), LeakWatch()
    producer = threading.Thread(target=_produce, args=(broker, 60))
    producer.start()
    for number in range(60):
        broker.get(number)
        broker.acknowledge(str(number))
        watch.step()
    producer.join()
    assert _only_leak(watch).owner.name == "_Broker.in_flight"


class _Node:
    def __init__(self, value: Any, previous: Any) -> None:
        self.value, self.previous = value, previous


class _Chain:
    def __init__(self) -> None:
        self.newest: Any = None

    def push(self) -> None:
        self.newest = _Node(torch.zeros(4096), self.newest)


def test_a_linked_list_is_kept_by_its_head() -> None:
    linked, watch = _Chain(), LeakWatch()
    for _ in range(12):
        linked.push()
        watch.step()
    assert _only_leak(watch).owner.source == "self.newest = _Node(torch.zeros(4096), self.newest)"


def test_a_tensor_that_is_made_anew_larger() -> None:
    bank, watch = torch.zeros(0), LeakWatch()
    for _ in range(12):
        bank = torch.cat((bank, torch.zeros(4096)))
        watch.step()
    assert _only_leak(watch).owner.name == "bank"


class _Service:
    pass


def test_what_a_library_files_by_itself_is_kept_by_the_call() -> None:
    service, watch = _Service(), LeakWatch()
    for _ in range(12):
        weakref.finalize(service, print, torch.zeros(4096)).atexit = False
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.name == "finalize._registry"
    assert leak.owner.source.startswith("weakref.finalize(service")


def _with_noise(forward: Callable[..., Any]) -> Callable[..., Any]:
    noise = torch.zeros(4096)

    def noisy(x: Any) -> Any:
        return forward(x + noise)

    return noisy


class _Teacher:
    def __init__(self, before: _Teacher | None) -> None:
        self.weights = torch.zeros(4096)
        self.before = before


class _Model:
    def __init__(self) -> None:
        self.forward: Callable[..., Any] = abs
        self.teacher: _Teacher | None = None

    def wrap(self) -> None:
        self.forward = _with_noise(self.forward)

    def follow(self) -> None:
        self.teacher = _Teacher(self.teacher)


@pytest.mark.parametrize(
    ("change", "source"),
    [
        (_Model.wrap, "self.forward = _with_noise(self.forward)"),
        (_Model.follow, "self.teacher = _Teacher(self.teacher)"),
    ],
)
@pytest.mark.parametrize("steps", [60, 61, 63])
def test_a_chain_is_kept_by_its_newest_link(
    change: Callable[[_Model], None], source: str, steps: int
) -> None:
    """The second link seems to grow as well, until a pause after its last birth is too long."""
    model, watch = _Model(), LeakWatch()
    for step in range(steps):
        if step % 4 == 0:
            change(model)
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.source == source
    assert leak.bytes_per_step == pytest.approx(_BYTES / 4, rel=0.05)
    assert leak.bytes >= 14 * _BYTES


def test_the_newest_link_that_a_variable_holds_too() -> None:
    model, watch = _Model(), LeakWatch()
    for step in range(59):
        if step % 6 == 0:
            noise = torch.zeros(4096)
            model.forward = functools.partial(_add, model.forward, noise)
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.source.startswith("model.forward = functools.partial(")
    assert leak.bytes == 9 * _BYTES
    assert noise is not None


def _add(forward: Callable[..., Any], noise: Any, x: Any) -> Any:
    return forward(x + noise)


@dataclass
class _Genome:
    weights: Any
    ancestor: _Genome | None = None

    def mutated(self) -> _Genome:
        return _Genome(self.weights + 1, ancestor=self)


def test_a_dataclass_that_is_linked_is_kept_by_the_call_that_makes_one() -> None:
    """And not by a variable that looks at the newest now and then."""
    evolution, watch = SimpleNamespace(champion=_Genome(torch.zeros(4096))), LeakWatch()
    for step in range(60):
        evolution.champion = evolution.champion.mutated()
        if step % 20 == 19:
            best = evolution.champion
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.source == "return _Genome(self.weights + 1, ancestor=self)"
    assert best is evolution.champion


@dataclass
class _State:
    number: int
    weights: Any
    prior: _State | None = None


class _Entry(NamedTuple):
    number: int
    weights: Any
    prior: Any = None


class _Version:
    def __init__(self, number: int, weights: Any, prior: Any = None) -> None:
        self.weights, self.prior, self.number = weights, prior, number


class _Server:
    """Whose states each hold the one before, in a parameter that is given by its position."""

    def __init__(self) -> None:
        self.state = _State(0, torch.zeros(4096))
        self.entry = _Entry(0, torch.zeros(4096), None)
        self.version = _Version(0, torch.zeros(4096))

    def next_state(self) -> None:
        before = self.state
        self.state = _State(before.number + 1, before.weights + 1, before)

    def next_entry(self) -> None:
        before = self.entry
        self.entry = _Entry(before.number + 1, before.weights + 1, before)

    def next_version(self) -> None:
        before = self.version
        self.version = _Version(before.number + 1, before.weights + 1, before)


@pytest.mark.parametrize("kind", ["state", "entry", "version"])
def test_what_is_linked_by_an_argument_without_a_name_is_kept_by_the_call(kind: str) -> None:
    server, watch = _Server(), LeakWatch()
    for _ in range(24):
        getattr(server, f"next_{kind}")()
        newest = getattr(server, kind)
        watch.step()
    source = _only_leak(watch).owner.source
    assert source.startswith(f"self.{kind} = _{kind.title()}(before.number + 1, ")
    assert newest.number == 24


class _Fields:
    """Attributes whose names are made: as many of a step as came in it, all alike."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        setattr(self, f"field{self.count}", torch.zeros(4096))
        self.count += 1


def test_attributes_that_are_alike_however_many_come_in_a_step() -> None:
    fields, chance, watch = _Fields(), random.Random(0), LeakWatch()
    for _ in range(40):
        for _ in range(chance.choice((2, 3, 5, 7))):
            fields.add()
        watch.step()
    assert _only_leak(watch).verdict == "proven"


def test_a_tensor_that_lost_its_holder_meanwhile_is_skipped() -> None:
    """A program that goes on during the search may take from a list what was found in it."""
    held, lost = torch.zeros(2), torch.zeros(3)
    search: Any = SimpleNamespace(
        roots={0: SimpleNamespace(kind="variable")}, order=[held, lost], torch=torch
    )
    assert _variables_on_the_way(search, {0: (-1, ""), 1: (-1, "")}) == [0]


class _Dataset:
    def __init__(self, tensor: Any) -> None:
        self.tensors = (tensor,)


class _Loader:
    def __init__(self, dataset: _Dataset) -> None:
        self.dataset = dataset


class _Registry:
    def __init__(self) -> None:
        self.loaders: list[_Loader] = []


@pytest.mark.parametrize(("epochs_registered", "verdict"), [(7, "proven"), (6, "not a problem")])
def test_the_newest_in_a_store_may_be_held_by_variables(
    epochs_registered: int, verdict: str
) -> None:
    watch = LeakWatch()
    registry = _Registry()
    for epoch in range(7):
        tensor = torch.zeros(10_000)
        dataset = _Dataset(tensor)
        loader = _Loader(dataset)
        if epoch < epochs_registered:
            registry.loaders.append(loader)
        for _ in range(16):
            watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict == verdict
    assert leak.owner is not None
    assert leak.owner.name == "_Registry.loaders"


class _Painter:
    """Hooks that a function makes, in the tables of modules that a dict has by name."""

    def __init__(self, layers: dict[str, Any]) -> None:
        for layer in layers.values():
            canvas = torch.zeros(4096)
            self.handle = layer.register_forward_hook(self.painter(canvas))

    def painter(self, canvas: Any) -> Callable[..., None]:
        def paint(_module: Any, _inputs: Any, output: Any) -> None:
            canvas.add_(output.sum())

        return paint


def test_hooks_that_a_function_makes_are_kept_by_the_registration() -> None:
    """And not by the line that makes the dict of modules, through which their table was reached."""
    watched = {"first": torch.nn.Linear(4, 4), "second": torch.nn.Linear(4, 4)}
    watch = LeakWatch()
    for step in range(24):
        if step % 2:
            _Painter(watched).handle.remove()
        watch.step()
    source = _only_leak(watch).owner.source
    assert source == "self.handle = layer.register_forward_hook(self.painter(canvas))"


class _Candidate:
    """One of a population; its class keeps the weights of all that ever were."""

    bank: ClassVar[dict[int, dict[str, Any]]] = {}

    def __init__(self, number: int) -> None:
        self.weights = {"inner": torch.zeros(_BYTES // 4), "outer": torch.zeros(_BYTES // 4)}
        _Candidate.bank[number] = self.weights


def test_the_newest_are_a_stores_too_where_objects_of_a_short_list_have_them() -> None:
    _Candidate.bank = {}
    population: deque[_Candidate] = deque(maxlen=10)
    watch = LeakWatch()
    for number in range(60):
        population.append(_Candidate(number))
        watch.step()
    leak = _only_leak(watch)
    assert leak.owner.name == "_Candidate.bank"
    assert leak.bytes >= 56 * 2 * _BYTES
