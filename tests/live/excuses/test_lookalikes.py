"""Rules that end growth, read from source alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
import torch

from vramlens import LeakWatch
from vramlens.ground.verdict import Verdict
from vramlens.live.excuses.container_bounds import (
    Growth,
    container_excuse,
    distant_bound,
)
from vramlens.live.excuses.key_types import key_types
from vramlens.live.excuses.lookalikes import gate, made_of_itself
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import loaded
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.source.source_stores import Store, read_source

RULES = {
    "holds at most 8 entries: its index is taken modulo 8": "x[i % 8] = new",
    "a ring buffer: its index is a remainder": "x[i % len(x)] = new",
    "a ring buffer: i starts over": "if i == 8:\n    i = 0\nx[i] = new",
    "it grows only as long as len(x) < 8": "if len(x) < 8:\n    x.append(new)",
    "it is cut to length each time": "x = (x + [new])[-8:]",
    "it is cut to length each time: del x[:-8] (line 3)": "x.append(new)\ndel x[:-8]",
    "takes away what is more than 8": "x.append(new)\nif len(x) > 8:\n    x.pop(0)",
    "line 5 overwrites it": "if i:\n    x.append(new)\nelse:\n    x[0] = new",
    "would empty it: x.clear()": "x.append(new)\nif i > 3:\n    x.clear()",
    "line 3 makes it anew each time": "for part in new:\n    x = [part, i]",
    "goes through what others hold: for x in new:": "for x in new:\n    use(x)",
    "its key is a shape": "if new.shape not in x:\n    x[new.shape] = new",
    "moved to host memory": "x.append(new.cpu())",
}


@pytest.fixture
def statements() -> Statements:
    torch = loaded()
    assert torch is not None
    return Statements(Search(torch))


def growth_in(path: Path, code: str, container: object) -> Growth:
    """What the statements of a function ``def fill(x, new, i)`` do to ``x``."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    path.write_text(f"def fill(x, new, i):\n{body}\n")
    module = read_source(str(path))
    assert module is not None
    stores = module.stores["x"]
    store = next(store for store in stores if not _takes(store))
    keeper = Keeper(str(path), store.line, "fill", store, tuple(stores), 0)
    return Growth(container, keeper, None)


def _takes(store: Store) -> bool:
    return store.method in ("pop", "clear")


@pytest.mark.parametrize("reason", RULES)
def test_rule(
    reason: str, tmp_path: Path, statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    container: object = {} if "key" in reason else []
    growth = growth_in(path, RULES[reason], container)
    monkeypatch.setattr(statements, "_files", [str(path)])
    excuse = gate(statements, growth)
    assert excuse is not None
    assert reason in excuse[1]
    assert excuse[0] in (Verdict.POSSIBLE, Verdict.NOT_A_PROBLEM)


def test_an_entry_for_each_new_key_is_not_written_anew(
    tmp_path: Path, statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keyed.py"
    growth = growth_in(path, "if i in x:\n    x[i] = x[i] + new\nelse:\n    x[i] = new", {})
    monkeypatch.setattr(statements, "_files", [str(path)])
    assert gate(statements, growth) is None


@pytest.mark.parametrize("guard", ["True", "len(x) >= 0"])
def test_what_would_overwrite_it_and_never_can_is_no_excuse(
    guard: str, tmp_path: Path, statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "always.py"
    growth = growth_in(path, f"if {guard}:\n    x.append(new)\nelse:\n    x[0] = new", [])
    monkeypatch.setattr(statements, "_files", [str(path)])
    assert gate(statements, growth) is None


IN_PLACE = """
class Table:
    def __init__(self):
        self.means = {}

    def update(self, label, mean):
        if label not in self.means:
            self.means[label] = mean.clone()
        else:
            self.means[label].mul_(0.9).add_(mean)
"""


def test_what_is_changed_in_place_is_not_put_there(
    load_program: Callable[..., ModuleType],
) -> None:
    table = load_program(IN_PLACE, "averaged").Table()
    watch = LeakWatch()
    for label in range(12):
        for known in range(label + 1):
            table.update(known, torch.zeros(4096))
        watch.step()
    (leak,) = watch.report().leaks
    assert (leak.owner.line, leak.owner.source) == (8, "self.means[label] = mean.clone()")
    assert "overwrites it" not in leak.reason


def test_a_cut_that_comes_rarely_is_no_length(
    tmp_path: Path, statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rare.py"
    growth = growth_in(path, "x.append(new)\nif i == 7:\n    del x[:-8]", [])
    monkeypatch.setattr(statements, "_files", [str(path)])
    excuse = gate(statements, growth)
    assert excuse is not None
    assert excuse[0] == Verdict.POSSIBLE


CONFIGURED = """
class Cache:
    def __init__(self, config):
        self.config, self.limits = config, (3, 8)
        self.entries = {}

    def keep(self, name, value):
        self.entries[name] = value
        while len(self.entries) > LIMIT:
            self.entries.popitem()
"""


@pytest.mark.parametrize("limit", ['self.config["most"]', "self.limits[1]"])
def test_a_limit_in_a_table(tmp_path: Path, statements: Statements, limit: str) -> None:
    class Holder:
        def __init__(self) -> None:
            self.config, self.limits = {"most": 8}, (3, 8)

    path = tmp_path / "configured.py"
    path.write_text(CONFIGURED.replace("LIMIT", limit))
    module = read_source(str(path))
    assert module is not None
    stores = module.stores["entries"]
    store = next(store for store in stores if store.how == "item")
    keeper = Keeper(str(path), store.line, "keep", store, tuple(stores), 0)
    excuse = gate(statements, Growth({}, keeper, Holder()))
    assert excuse is not None
    assert excuse[0] == Verdict.NOT_A_PROBLEM
    assert "takes away what is more than 8" in excuse[1]


def test_plain_growth_has_no_excuse(tmp_path: Path, statements: Statements) -> None:
    assert gate(statements, growth_in(tmp_path / "plain.py", "x.append(new)", [])) is None


def test_self_as_a_key_s_owner_is_no_ring(
    tmp_path: Path, statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``self`` of ``x[self.i]`` is no index that another statement takes a remainder of."""
    path = tmp_path / "own.py"
    growth = growth_in(path, "self = i % 8\nx[self.i] = new", {})
    monkeypatch.setattr(statements, "_files", [str(path)])
    assert gate(statements, growth) is None


def test_bounds_of_containers() -> None:
    assert container_excuse(Growth([], None, None)) is None
    full = Growth(deque([1], maxlen=8), None, None, kept_bytes=1 << 20)
    excuse = container_excuse(full)
    assert excuse == (Verdict.NOT_A_PROBLEM, "a deque that never holds more than 8")
    assert distant_bound(full) == ""
    distant = Growth(deque([1], maxlen=10_000), None, None, kept_bytes=1 << 20)
    assert distant_bound(distant).startswith("bounded at 10,000: ")


def test_made_of_itself_by_way_of_a_variable(tmp_path: Path) -> None:
    growth = growth_in(tmp_path / "self.py", "y = cat((x, new))\nx = y", [])
    assert growth.store is not None
    assert made_of_itself(growth.store)


def test_a_detached_tensor_is_as_large_as_before(tmp_path: Path) -> None:
    remade = growth_in(tmp_path / "remade.py", "x = model(new)\nx = x.detach().cpu()", [])
    assert remade.store is not None
    assert not made_of_itself(remade.store)
    carried = growth_in(tmp_path / "carried.py", "x = cat((x, new))\nx = x.detach()", [])
    assert carried.store is not None
    assert made_of_itself(carried.store)
    alone = growth_in(tmp_path / "alone.py", "x = x.detach()", [])
    assert alone.store is not None
    assert made_of_itself(alone.store)


MISSED = """
class Server:
    def __init__(self):
        self.sessions = {}
        self.oldest = 0

    def serve(self, number):
        self.sessions[str(number)] = torch.zeros(4096)
        self.sessions.pop(self.oldest, None)
        self.oldest += 1
"""


def test_a_removal_that_never_hits_is_counted_and_the_types_of_its_key_told(
    load_program: Callable[..., ModuleType],
) -> None:
    server = load_program(MISSED, "served").Server()
    watch = LeakWatch()
    for number in range(30):
        server.serve(number)
        watch.step()
    (leak,) = watch.report().found
    assert leak.verdict == "likely"
    steps = leak.reason.partition(" steps took")[0].rpartition(" ")[2]
    assert int(steps) >= 24
    assert leak.reason == (
        f"0 of the removals at line 9 in {steps} steps took something out:"
        " self.sessions.pop(self.oldest, None); its keys are str, and line 9 looks for int"
    )


def test_a_removal_by_age_asks_for_no_key(tmp_path: Path) -> None:
    path = tmp_path / "by_age.py"
    path.write_text("kept.popitem(last=False)\n")
    module = read_source(str(path))
    assert module is not None
    (removal,) = module.stores["kept"]
    assert not key_types({1: "a", 2: "b"}, removal)


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("str(number)", "str"),
        ("f'{number}'", "str"),
        ("message['session']", "str"),
        ("(number, 1)", "tuple"),
        ("number", ""),
        ("len(name)", ""),
        ("float(name)", ""),
    ],
)
def test_the_type_that_a_removal_asks_for(tmp_path: Path, key: str, asked: str) -> None:
    path = tmp_path / "asked.py"
    path.write_text(
        f"def take(number, message, name):\n    kept.pop({key}, None)\n"
        "answer = {'session': str(3)}\n"
    )
    module = read_source(str(path))
    assert module is not None
    (removal,) = module.stores["kept"]
    told = key_types({1: "a", 2: "b"}, removal)
    assert told == (f"its keys are int, and line 2 looks for {asked}" if asked else "")


class _Name(str):
    """A key that equals plain text."""

    __slots__ = ()


def test_a_key_whose_class_derives_from_what_is_asked_for_may_be_it(tmp_path: Path) -> None:
    path = tmp_path / "derived.py"
    path.write_text("def take(number):\n    kept.pop(str(number), None)\n")
    module = read_source(str(path))
    assert module is not None
    (removal,) = module.stores["kept"]
    assert not key_types({_Name("a"): 1}, removal)


PASSED = """
class Store:
    def __init__(self):
        self.dirty, self.limit = {}, 5

    def put(self, number):
        self.dirty[number, "title"] = torch.zeros(4096)
        self.dirty[number, "body"] = torch.zeros(4096)
        if len(self.dirty) == self.limit:
            self.flush()

    def flush(self):
        self.dirty.clear()
"""


def test_a_flush_at_a_length_that_was_jumped_over_is_no_excuse(
    load_program: Callable[..., ModuleType],
) -> None:
    store = load_program(PASSED, "passed").Store()
    watch = LeakWatch()
    for number in range(20):
        store.put(number)
        watch.step()
    (leak,) = watch.report().found
    assert leak.verdict == "proven"
