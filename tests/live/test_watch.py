"""LeakWatch in one process: what is said of leaks and look-alikes, and that nothing is changed
by looking.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint

import vramlens  # noqa: E402
from vramlens.capture.process.undisturbed import no_collection  # noqa: E402
from vramlens.live import LeakError, LeakReport  # noqa: E402
from vramlens.live.growth.births import Births  # noqa: E402
from vramlens.live.heap.objects import frame_variables  # noqa: E402
from vramlens.live.heap.search import Search  # noqa: E402
from vramlens.live.heap.search_time import SearchTime  # noqa: E402
from vramlens.live.heap.tensors import loaded  # noqa: E402

BYTES = 4 * 1000


def watched(step: Callable[[int], None], steps: int = 12) -> LeakReport:
    watch = vramlens.LeakWatch()
    for number in range(steps):
        step(number)
        watch.step()
    return watch.report()


class Trainer:
    def __init__(self) -> None:
        self.history: list[Any] = []
        self.model = torch.nn.Linear(100, 10)

    def keep_loss(self, _number: int) -> None:
        loss = self.model(torch.randn(10, 100)).tanh().sum()
        self.history.append(loss)

    def keep_value(self, _number: int) -> None:
        loss = self.model(torch.randn(10, 100)).tanh().sum()
        self.history.append(loss.item())


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(
            number for number, line in enumerate(file, 1) if text in line and "line_of" not in line
        )


def test_what_a_search_makes_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report in mid-run makes as many objects as some steps: looking at them would use up the
    time for steps.
    """
    looked: list[int] = []
    look = Births._note

    def counted(births: Births, tensors: list[Any], step: int) -> None:
        looked.append(len(tensors))
        look(births, tensors, step)

    monkeypatch.setattr(Births, "_note", counted)
    watch = vramlens.LeakWatch()
    trainer = Trainer()
    for number in range(8):
        trainer.keep_loss(number)
        watch.step()
    gc.collect()
    looked.clear()
    report = watch.report()
    gc.collect()
    watch.step()
    assert report.found
    assert sum(looked) < 8


def test_kept_loss_is_one_proven_leak_with_its_statement() -> None:
    report = watched(Trainer().keep_loss)
    (leak,) = report.found
    assert (leak.verdict, leak.kind) == ("proven", "graph")
    assert leak.owner is not None
    assert leak.owner.name == "Trainer.history"
    assert leak.owner.line == line_of("self.history.append(loss)")
    assert leak.bytes_per_step == 4 + 400 + 4000  # the loss, tanh's result, the batch
    assert leak.bytes == 12 * leak.bytes_per_step
    assert "loss.detach()" in leak.fix
    entry = report.to_dict()["leaks"][0]
    assert entry["class"] == "graph"
    assert entry["owner"]["chain"][-1].startswith("_saved")
    assert "LEAK proven: 4.30 KiB per step" in str(report)
    assert "keeps the autograd graph of every step" in " ".join(str(report).split())


def test_kept_numbers_are_no_leak() -> None:
    assert watched(Trainer().keep_value).found == ()


def test_a_bounded_deque_is_no_problem() -> None:
    frames: deque[Any] = deque(maxlen=50)
    report = watched(lambda _: frames.append(torch.zeros(1000)))
    assert report.found == ()
    assert [leak.verdict for leak in report.leaks] == ["not a problem"]


def test_state_of_an_optimizer_is_no_leak() -> None:
    model = torch.nn.Linear(50, 50)
    optimizer = torch.optim.Adam(model.parameters())

    def step(_number: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 50)).sum().backward()
        optimizer.step()

    assert watched(step).found == ()


def test_too_few_steps_says_how_many_more() -> None:
    report = watched(Trainer().keep_loss, steps=2)
    assert report.found == ()
    assert report.to_dict()["needs_steps"] == 3
    assert str(report).startswith(
        "Too few steps to tell: 2 steps have ended; 3 more steps are needed"
    )
    assert str(LeakReport(0, (), missing_steps=5)).startswith(
        "Too few steps to tell: 0 steps have ended; 5 more steps"
    )
    assert str(LeakReport(5, ())).startswith("No leak: 5 steps watched")


def test_what_grows_by_being_made_anew() -> None:
    class Evaluation:
        everything = torch.zeros(0)

        def add(self, _number: int) -> None:
            self.everything = torch.cat((self.everything, torch.zeros(1000)))

    (leak,) = watched(Evaluation().add).found
    assert leak.kind == "container"
    assert leak.bytes_per_step == BYTES
    assert leak.owner is not None
    assert leak.owner.line == line_of("self.everything = torch.cat(")


def test_a_circle_that_waits_for_the_collector() -> None:
    class Box:
        def __init__(self) -> None:
            self.me = self
            self.data = torch.zeros(1000)

    gc.collect()
    gc.disable()
    try:
        report = watched(lambda _: Box() and None)
    finally:
        gc.enable()
        gc.collect()
    (leak,) = report.found
    assert leak.kind == "cycle"
    assert leak.bytes_per_step == BYTES
    assert leak.owner is not None
    assert leak.owner.name == "Box.me"
    assert leak.owner.line == line_of("self.me = self")


@pytest.mark.parametrize("is_off", [True, False])
def test_only_a_collector_that_the_program_turned_off_is_called_off(is_off: bool) -> None:
    """A report asked for while vramlens itself keeps the collector away, as ``attach`` does."""

    class Box:
        def __init__(self) -> None:
            self.me = self
            self.data = torch.zeros(1000)

    gc.collect()
    if is_off:
        gc.disable()
    try:
        with no_collection():
            text = str(watched(lambda _: Box() and None))
    finally:
        gc.enable()
        gc.collect()
    assert "Box.me" in text
    assert ("gc.disable()" in text) == is_off


def test_a_circle_that_the_collector_takes_is_possible_and_is_told_with_its_fix() -> None:
    class Node:
        me: Any

    def step(number: int) -> None:
        if number == 7:
            gc.collect()
        node = Node()
        node.me, node.out = node, torch.zeros(1000)  # type: ignore[attr-defined]

    gc.disable()
    try:
        report = watched(step)
    finally:
        gc.enable()
        gc.collect()
    text = str(report)
    assert report.found == ()
    assert text.startswith("No leak proven, 1 possible: Node.me (")
    assert "a reference cycle: 3.91 KiB per step wait for Python's collector" in " ".join(
        text.split()
    )
    assert "\n  Fix: make Node.me a weak reference" in text
    assert "\nNext: if Node.me should not keep them, change " in text


def test_what_grew_and_is_gone_is_not_called_no_leak() -> None:
    watch = vramlens.LeakWatch()

    def main() -> None:
        outs = []
        for _ in range(10):
            outs.append(torch.zeros(1000))
            watch.step()

    main()
    report = watch.report()
    assert " ".join(str(report).split()).startswith(
        "Cannot tell: memory grew 3.91 KiB per step until step 9. Then the program freed all of it, so what kept it is unknown. To find out, call report() inside main()."
    )
    assert report.to_dict()["gone"] == {"bytes_per_step": BYTES, "until_step": 9}


def test_what_each_step_replaces_and_what_was_emptied_is_no_leak_when_it_is_gone() -> None:
    watch = vramlens.LeakWatch()

    def main() -> None:
        model = torch.nn.Linear(50, 50)
        outs = []
        for number in range(20):
            loss = model(torch.randn(3 + number, 50)).tanh().sum()
            loss.backward()
            outs.append(torch.zeros(1000))
            if number == 15:
                outs.clear()
            watch.step()

    main()
    assert str(watch.report()).startswith("No leak: 20 steps watched")


def test_freed_graphs_lists_called_cache_and_chains_of_tracebacks() -> None:
    trainer = Trainer()
    cache: list[Any] = []
    errors = []

    def fail(depth: int) -> None:
        data = torch.zeros(500)
        if depth:
            fail(depth - 1)
        raise ValueError(data.shape)

    def step(number: int) -> None:
        trainer.keep_loss(number)
        trainer.history[-1].backward()
        cache.append(torch.zeros(1000))
        try:
            fail(3)
        except ValueError as error:
            errors.append(error)

    report = watched(step)
    found = {leak.owner.name: leak for leak in report.found if leak.owner is not None}
    freed = "keeps the autograd graph of every step, each with 1 tensor (backward has freed the saved ones)"
    assert freed in " ".join(str(report).split())
    assert (
        found["cache"].fix
        == "limit cache (a deque(maxlen=...)) or empty it once its entries have been used"
    )
    owner = found["errors"].owner
    assert owner is not None
    assert [
        text.partition(" (")[0]
        for text in owner.chain
        if text.startswith(("__traceback__", "traceback"))
    ] == ["__traceback__: the frame of fail()"]


def test_looking_changes_nothing() -> None:
    calls = []

    class Counted(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            calls.append(1)
            return x.tanh()

    module = Counted()
    kept = []

    def step(_number: int) -> None:
        x = torch.randn(100, requires_grad=True)
        kept.append(checkpoint(module, x, use_reentrant=False).sum())

    count = torch._C._storage_Use_Count
    watch = vramlens.LeakWatch()
    for number in range(6):
        step(number)
        watch.step()
    storages = [one.untyped_storage() for one in kept]
    before = [count(one._cdata) for one in storages], len(calls), gc.isenabled(), gc.get_threshold()
    references = [sys.getrefcount(one) for one in kept]
    report = watch.report()
    vramlens.who_holds(kept[0])
    vramlens.holders()
    after = [count(one._cdata) for one in storages], len(calls), gc.isenabled(), gc.get_threshold()
    assert before == after
    assert references == [sys.getrefcount(one) for one in kept]
    assert report.found
    kept[0].backward()  # the graph is what it was
    assert len(calls) == 7


def test_variables_of_running_functions_are_not_kept() -> None:
    tensor = torch.zeros(10)
    gone = weakref.ref(tensor)
    assert "tensor" in frame_variables(sys._getframe())
    del tensor
    assert gone() is None or sys.gettrace() is not None


def test_variables_are_not_kept_by_a_list_of_all_dicts() -> None:
    """The copy that a frame has of its variables is one of them when it is read again."""

    def generate() -> Generator[weakref.ref[Any], None, None]:
        tensor = torch.zeros(10)
        gone = weakref.ref(tensor)
        yield gone
        del tensor
        yield gone

    values = generate()
    gone = next(values)
    frame_variables(values.gi_frame)
    every_dict = [known for known in gc.get_objects() if type(known) is dict]
    assert "tensor" in frame_variables(values.gi_frame)
    next(values)
    assert gone() is None or sys.gettrace() is not None
    assert every_dict


def test_who_has_the_variables_keeps_them() -> None:
    number = 7
    mine = locals()
    assert frame_variables(sys._getframe())["number"] == number
    assert mine["number"] == number


def test_after_the_search_everything_can_go() -> None:
    class Holder:
        pass

    holder: Any = Holder()
    holder.tensor = torch.zeros(10)
    gone = weakref.ref(holder)
    torch_objects = loaded()
    assert torch_objects is not None
    search = Search(torch_objects).run()
    assert id(holder) in search.seen
    search.close()
    vramlens.holders()
    del holder
    assert gone() is None


def test_a_search_that_runs_out_of_time_says_so() -> None:
    torch_objects = loaded()
    assert torch_objects is not None
    search = Search(torch_objects, SearchTime(0.0)).run()
    assert not search.complete
    assert "time limit" in search.skipped[0]
    search.close()


def test_who_holds_gives_the_chain() -> None:
    trainer = Trainer()
    trainer.keep_loss(0)
    found = vramlens.who_holds(trainer.history[0])
    assert found.owners[0].name == "Trainer.history"
    assert found.owners[0].line == line_of("self.history.append(loss)")
    assert "[0]: Tensor [] float32" in str(found)


def test_who_holds_names_all_owners() -> None:
    class Store:
        best: Any = None

    store, trainer, table = Store(), Trainer(), {}
    tensor = torch.ones(5, 100)
    store.best = tensor
    trainer.history.append(tensor)
    table["last"] = tensor[:2]  # another look at the same memory
    loss = trainer.model(tensor).sum()  # its graph keeps the batch
    found = vramlens.who_holds(tensor)
    names = {owner.name for owner in found.owners}
    assert names == {"Store.best", "Trainer.history", "table['last']", "loss"} or names == {
        "Store.best", "Trainer.history", "table", "loss",
    }  # fmt: skip
    assert str(found).count("\nand by ") == 3
    assert loss.grad_fn is not None


def test_variables_of_running_libraries_are_left_out() -> None:
    found: list[Any] = []

    def hook(*given: Any) -> None:
        del given
        found.append(vramlens.holders())

    class Inner(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            found.append(vramlens.who_holds(x))
            return x.sum()

    module = Inner()
    module.register_forward_hook(hook)
    module.weight = torch.nn.Parameter(torch.zeros(20, 100))
    module(torch.zeros(500_000))  # held by nobody of the user's
    held, table = found
    assert [owner.name for owner in held.owners] == ["x"]
    assert "and by 2 variables of running library functions" in str(held)
    names = [
        owner.name for owner, _, _ in table.rows if "pytestmark" not in owner.name
    ]  # other tests' parameters
    assert not [name for name in names if "args" in name]
    assert "1.91 MiB  running library functions or unnamed objects, 2 tensors" in str(table)


def test_who_holds_of_a_variable_alone() -> None:
    mine = torch.zeros(3)

    def inner(given: Any) -> Any:
        return vramlens.who_holds(given)

    (owner,) = inner(mine).owners  # inner's own does not count, its caller's does
    assert (owner.name, owner.kind) == ("mine", "variable")
    with pytest.raises(vramlens.UsageError, match="takes a tensor"):
        vramlens.who_holds(None)


def test_fixes_read_as_edits() -> None:
    trainer, module = Trainer(), torch.nn.Linear(3, 3)
    table: dict[int, Any] = {}
    squares: list[Any] = []

    @functools.lru_cache(maxsize=None)  # noqa: UP033
    def mask(number: int) -> Any:
        return torch.zeros(100).add(number)

    def step(number: int) -> None:
        trainer.keep_loss(number)
        squares.append(
            (trainer.model(torch.randn(7, 100)) ** 2).tanh().mul(number + 1.0).add(number)
        )
        mask(number)
        table[number] = torch.zeros(50)
        kept = torch.zeros(60)
        module.register_forward_hook(lambda *_: kept.sum())

    fixes = {leak.owner.name: leak.fix for leak in watched(step).found if leak.owner is not None}
    assert (
        fixes["Trainer.history"]
        == "keep loss.detach() or loss.item() instead of loss, which frees the graph behind it"
    )
    assert (
        fixes["squares"]
        == "keep detached tensors (.detach()) there, which frees the graph behind them"
    )
    (cache,) = (fix for name, fix in fixes.items() if "mask" in name)
    assert "@lru_cache(maxsize=...)" in cache
    assert "mask.cache_clear()" in cache
    assert (
        fixes["table"]
        == "limit table (delete old keys) or empty it once its entries have been used"
    )
    (hook,) = (fix for name, fix in fixes.items() if "hooks" in name)
    assert "handle = module.register_forward_hook(" in hook
    assert "handle.remove()" in hook


def test_holders_rank_by_what_would_go() -> None:
    big = Trainer()
    for number in range(30):
        big.keep_loss(number)
    big.extra = [torch.zeros(3_000_000)]  # type: ignore[attr-defined]
    (owner, size, _), *_ = vramlens.holders().rows
    assert owner.name == "Trainer.extra"
    assert size == 12_000_000


def within(trainer: Trainer) -> None:
    with vramlens.no_leaks() as watch:
        for number in range(8):
            trainer.keep_loss(number)
            watch.step()


def test_no_leaks_raises_with_the_owner() -> None:
    trainer = Trainer()
    with pytest.raises(LeakError, match=r"Trainer\.history") as caught:
        within(trainer)
    assert isinstance(caught.value, AssertionError)
    assert caught.value.report.found
    shown = [entry.name for entry in caught.traceback if not entry.ishidden(caught)]
    assert shown[1:] == ["within"]  # pytest shows the test's own lines alone
    with pytest.raises(ZeroDivisionError), vramlens.no_leaks():
        raise ZeroDivisionError


def test_no_leaks_wants_its_steps() -> None:
    with (
        pytest.raises(LeakError, match="0 steps ended in the block, but 5 are needed"),
        vramlens.no_leaks(),
    ):
        pass
    with vramlens.no_leaks(steps=5):
        for number in range(5):
            Trainer().keep_value(number)
            vramlens.step()


def test_release_clears_the_chain_of_an_exception() -> None:
    def fail() -> None:
        data = torch.zeros(50_000)
        raise ValueError(data.shape)

    kept: BaseException | None = None
    try:
        try:
            fail()
        except ValueError as error:
            raise RuntimeError from error
    except RuntimeError as error:
        kept = error
    released = vramlens.release(kept)
    assert released.exceptions == 2
    assert released.bytes == 200_000
    assert "195.31 KiB" in str(released)
    assert vramlens.release(kept).bytes == 0


class _Ring:
    def __init__(self) -> None:
        self.me, self.data = self, torch.zeros(50_000, requires_grad=True)


def test_release_searches_what_the_frames_lead_to_only() -> None:
    """Also what a graph saves, and what waits for the collector; not what is held elsewhere."""
    elsewhere = torch.zeros(50_000)

    def fail(ring: _Ring) -> None:
        shared = elsewhere
        loss = (ring.data.exp() * 2).sum()
        raise ValueError(loss, shared)

    errors: list[ValueError] = []
    try:
        fail(_Ring())
    except ValueError as error:
        error.args = ()
        errors.append(error)
    gc.disable()
    try:
        released = vramlens.release(errors[0])
    finally:
        gc.enable()
    assert released.bytes >= 200_004
    assert released.storages in (2, 3)
    assert elsewhere.numel() == 50_000


def test_release_does_not_search_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called for each failed request, it takes as long as the request's own things are many."""
    kept = [[number] for number in range(20_000)]
    reached: list[int] = []
    closed = Search.close
    monkeypatch.setattr(
        Search, "close", lambda search: (reached.append(len(search.order)), closed(search))
    )

    def fail() -> None:
        data = torch.zeros(50_000)
        raise ValueError(data.shape)

    with pytest.raises(ValueError) as failure:
        fail()
    error = failure.value
    del failure
    assert vramlens.release(error).bytes == 200_000
    assert len(kept) == 20_000
    assert max(reached) < 100


def test_a_leak_that_is_too_small_to_matter_says_so() -> None:
    watch = vramlens.LeakWatch()
    large = torch.zeros(1 << 20)
    kept = []
    for _ in range(12):
        kept.append(torch.zeros(50))
        watch.step()
    text = str(watch.report())
    del large
    assert text.startswith("Too small to matter: 200 bytes per step")
    assert text.splitlines()[0].endswith("(proven)")
