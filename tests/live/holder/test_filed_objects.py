"""What keeps where no name of the user's leads to it: what a library files by itself, and chains of
objects that know the one before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import vramlens
from live.holder.fixed_programs import module_of

FEW_STEPS = 12
HEAD = """\
import asyncio, logging, queue, torch
from torch import nn
from torch.nn.utils import parametrize
"""
Told = Callable[..., Any]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """The leak that is told of a program whose ``main`` calls ``tick`` after each step."""

    def leak_of(program: str, steps: int = FEW_STEPS) -> Any:
        watch = vramlens.LeakWatch()
        leaks: list[Any] = []

        def tick() -> None:
            watch.step()
            if watch.steps == steps:
                leaks.extend(watch.report().leaks)

        module = module_of(tmp_path / "filing.py", f"{HEAD}STEPS = {steps}\n{program}")
        try:
            module.main(tick)
        finally:
            del sys.modules["filing"]
        return max(leaks, key=lambda leak: leak.bytes_per_step)

    return leak_of


def test_timers_of_an_event_loop(told: Told) -> None:
    leak = told("""
class Job:
    def __init__(self):
        self.audio, self.done = torch.zeros(4096), asyncio.Event()

class Service:
    def __init__(self):
        self.inbox = asyncio.Queue()
    def expire(self, job):
        job.done.set()
    async def submit(self, job):
        loop = asyncio.get_running_loop()
        loop.call_later(600, self.expire, job)
        await self.inbox.put(job)
        await job.done.wait()
    async def work(self):
        while True:
            job = await self.inbox.get()
            job.done.set()

async def serve(tick):
    service = Service()
    worker = asyncio.create_task(service.work())
    for _ in range(STEPS):
        await service.submit(Job())
        tick()
    worker.cancel()

def main(tick):
    asyncio.run(serve(tick))
""")
    assert leak.verdict == "proven"
    assert leak.owner.name == "loop.call_later(…)"
    assert leak.owner.source == "loop.call_later(600, self.expire, job)"
    assert leak.fix.startswith("keep the timer, handle = loop.call_later(...), and call")


@pytest.mark.parametrize("waits", ["asyncio.sleep(600)", "self.closed.wait()"])
def test_tasks_that_wait_in_an_event_loop(told: Told, waits: str) -> None:
    leak = told(f"""
class Session:
    def __init__(self):
        self.audio, self.finished = torch.zeros(4096), False

class Service:
    def __init__(self):
        self.closed = asyncio.Event()
        self.tasks = set()
    async def heartbeat(self, session):
        while not session.finished:
            await {waits}
    async def serve(self, session):
        asyncio.create_task(self.heartbeat(session))
        await asyncio.sleep(0)

async def serve(tick):
    service = Service()
    asyncio.get_running_loop().call_later(60, print, "still here")
    for _ in range(STEPS):
        await service.serve(Session())
        tick()

def main(tick):
    asyncio.run(serve(tick))
""")
    assert leak.verdict == "proven"
    assert leak.owner.name == "Service.heartbeat()"
    assert leak.owner.source == "asyncio.create_task(self.heartbeat(session))"
    assert leak.fix == (
        "let Service.heartbeat() return once nobody needs it, or keep its task, task ="
        " asyncio.create_task(self.heartbeat(session)), and cancel it then: task.cancel()"
    )


@pytest.mark.parametrize(
    ("statement", "fix"),
    [
        (
            "stopped = asyncio.create_task(self.stopping.wait())",
            "call stopped.cancel() once nobody needs it: a task that waits keeps its context",
        ),
        (
            "asyncio.create_task(self.stopping.wait())",
            "end what waits there once nobody needs it: asyncio.timeout(...), or task.cancel()",
        ),
    ],
)
def test_waiters_whose_context_has_a_tensor(told: Told, statement: str, fix: str) -> None:
    """The coroutine that waits is asyncio's own."""
    leak = told(f"""
import contextvars
current = contextvars.ContextVar("current")

class Service:
    def __init__(self):
        self.stopping = asyncio.Event()
    async def handle(self):
        current.set(torch.zeros(4096))
        {statement}
        await asyncio.sleep(0)
    async def stop(self):
        self.stopping.set()

async def serve(tick):
    service = Service()
    for _ in range(STEPS):
        await asyncio.create_task(service.handle())
        tick()
    await service.stop()

def main(tick):
    asyncio.run(serve(tick))
""")
    assert leak.owner.source == statement
    assert leak.fix == fix


def test_loggers(told: Told) -> None:
    leak = told("""
class Tagged(logging.Filter):
    def __init__(self, features):
        super().__init__()
        self.features = features

def main(tick):
    for number in range(STEPS):
        log = logging.getLogger(f"filing.request.{number}")
        log.addFilter(Tagged(torch.zeros(4096)))
        tick()
""")
    assert leak.owner.source == 'log = logging.getLogger(f"filing.request.{number}")'
    assert leak.fix.startswith("ask logging.getLogger(...) for the same few names")


def test_the_program_s_own_logger_is_not_the_one_that_comes_with_each_step(told: Told) -> None:
    leak = told("""
log = logging.getLogger("filing")

class Tagged(logging.Filter):
    def __init__(self, match):
        super().__init__()
        self.match = match

class Match:
    def __init__(self, number):
        self.boards = torch.zeros(4096)
        self.log = logging.getLogger(f"filing.match{number}")
        self.log.addFilter(Tagged(self))

def main(tick):
    for number in range(STEPS):
        Match(number).log.debug("done")
        log.debug("%d", number)
        tick()
""")
    assert leak.owner.source == 'self.log = logging.getLogger(f"filing.match{number}")'


def test_handlers_that_each_call_the_one_before(told: Told) -> None:
    """Trials of different sizes: what grows is one chain, and no state that is created when it is needed."""
    leak = told(
        """
import functools, signal

class Trial:
    def __init__(self, number):
        self.weights = torch.zeros(4096 + 512 * (number % 5))

def stop(trial, previous, *arguments):
    previous(*arguments)

def run(number):
    previous = signal.getsignal(signal.SIGUSR1)
    trial = Trial(number)
    signal.signal(signal.SIGUSR1, functools.partial(stop, trial, previous))

def main(tick):
    first = signal.getsignal(signal.SIGUSR1)
    try:
        for number in range(STEPS):
            run(number)
            tick()
    finally:
        signal.signal(signal.SIGUSR1, first)
""",
        steps=24,
    )
    assert leak.verdict in ("proven", "likely")
    assert "signal.signal(signal.SIGUSR1" in leak.owner.source


def test_entries_that_lead_to_those_that_have_left(told: Told) -> None:
    leak = told(
        """
from collections import deque

class Edit:
    def __init__(self, mask, base=None):
        self.mask, self.base = mask, base

class History:
    def __init__(self):
        self.stack = deque([Edit(torch.zeros(4096))], maxlen=4)
    def push(self, mask):
        self.stack.append(Edit(mask, base=self.stack[-1]))

def main(tick):
    history = History()
    for number in range(STEPS):
        history.push(torch.zeros(4096))
        tick()
""",
        steps=24,
    )
    assert "each leads to the entry before it through Edit.base" in leak.fix
    assert "set base to None in the oldest one that it keeps" in leak.fix


def test_parametrizations(told: Told) -> None:
    leak = told("""
class Masked(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
    def forward(self, weight):
        return weight * self.mask

def prune(layer):
    parametrize.register_parametrization(layer, "weight", Masked(torch.ones(64, 64)))

def main(tick):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    for _ in range(STEPS):
        model(torch.zeros(2, 64))
        prune(model[0])
        tick()
""")
    assert leak.owner.source.startswith("parametrize.register_parametrization(layer,")
    assert "remove_parametrizations(...) before the next parametrize.register_p" in leak.fix


def test_groups_of_parameters(told: Told) -> None:
    leak = told("""
def main(tick):
    scale = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([scale])
    for _ in range(STEPS):
        fresh = nn.Parameter(torch.zeros(64, 64))
        optimizer.add_param_group({"params": [fresh]})
        (scale * fresh).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        tick()
""")
    assert leak.owner.source == 'optimizer.add_param_group({"params": [fresh]})'
    assert "their group from optimizer.param_groups" in leak.fix


def test_an_object_that_knows_the_one_before(told: Told) -> None:
    leak = told("""
class Node:
    def __init__(self, parent=None):
        self.parent = parent
        self.board = torch.zeros(4096)
        self.visits, self.children = 0, []
    def backup(self):
        node = self
        for _ in range(3):
            if node is None:
                return
            node.visits += 1
            node = node.parent

def think(root):
    root.children = [Node(root), Node(root)]
    for child in root.children:
        child.backup()
    return max(root.children, key=lambda child: child.visits)

def main(tick):
    root = Node()
    for _ in range(STEPS):
        root = think(root)
        tick()
""")
    assert leak.owner.source in ("self.parent = parent", "root = think(root)")
    assert leak.fix.startswith("make Node.parent a weak reference (weakref.ref)")


def test_a_queue_from_which_less_is_taken_than_comes(told: Told) -> None:
    program = """
def main(tick):
    pending = queue.Queue()
    for _ in range(STEPS):
        pending.put(torch.zeros(4096))
        pending.put(torch.zeros(4096))
        pending.get()
        tick()
"""
    leak = told(program, steps=40)
    assert leak.verdict in ("proven", "likely")
    assert leak.fix.startswith("limit pending (maxsize=...)")


def test_results_beside_a_graph_that_is_freed(told: Told) -> None:
    leak = told("""
class Episode:
    def __init__(self):
        self.seen, self.log_probs = [], []

def main(tick):
    policy, closed = nn.Linear(8, 2), []
    for _ in range(STEPS):
        episode = Episode()
        for _ in range(3):
            seen = torch.randn(512, 8)
            episode.seen.append(seen)
            episode.log_probs.append(policy(seen).log_softmax(1)[:, 0])
        torch.stack(episode.log_probs).mean().backward()
        closed.append(episode)
        tick()
""")
    assert leak.fix.startswith("limit closed (")
    assert "a detached tensor still keeps its own memory" in leak.fix


def test_lines_that_are_logged(told: Told) -> None:
    leak = told("""
from logging.handlers import MemoryHandler

def open_report():
    report = MemoryHandler(100_000, flushLevel=logging.CRITICAL)
    log = logging.getLogger("filing.report")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(report)
    return log, report

def main(tick):
    log, report = open_report()
    for number in range(STEPS):
        log.debug("step %d: %s", number, torch.zeros(4096))
        tick()
    report.close()
""")
    assert leak.owner.source == 'log.debug("step %d: %s", number, torch.zeros(4096))'
    assert leak.fix.startswith("log a number or text instead of the tensor: report.buffer keeps")


def test_buffers_with_ever_new_names(told: Told) -> None:
    leak = told("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("sums", torch.zeros(4096))
        self.register_buffer(self.slot(-1), torch.zeros(4096))
    def slot(self, number):
        return f"mean_{number}"
    def end(self, number):
        mean = self.sums / 2
        self.register_buffer(self.slot(number), mean, persistent=False)

def main(tick):
    net = Net()
    for number in range(STEPS):
        net.layer(torch.zeros(2, 8))
        net.end(number)
        tick()
""")
    assert leak.owner.source == "self.register_buffer(self.slot(number), mean, persistent=False)"
    assert leak.fix.startswith("use one name, so that a new tensor replaces the earlier one")


@pytest.mark.parametrize(("name", "has_one"), [('"rows"', True), ('f"rows_{number}"', False)])
def test_attributes_that_are_set_by_name(told: Told, name: str, has_one: bool) -> None:
    leak = told(f"""
class Store:
    rows = ()

def main(tick):
    store = Store()
    for number in range(STEPS):
        setattr(store, {name}, (*store.rows, torch.zeros(4096)))
        tick()
""")
    assert leak.fix.startswith("use one name") != has_one


def test_threads_that_wait_each_with_its_own(told: Told) -> None:
    """One in five steps: as few steps leave something where two pools take turns, but these keep their
    threads.
    """
    leak = told(
        """
import threading
done = threading.Event()

def produce(line, number):
    rows = torch.zeros(4096 + 64 * (number % 7))
    while not done.is_set():
        try:
            line.put(rows.sum(), timeout=0.2)
        except queue.Full:
            pass

def main(tick):
    for number in range(STEPS):
        if number % 5 == 0:
            line = queue.Queue(maxsize=2)
            threading.Thread(target=produce, args=(line, number), daemon=True).start()
        line.get()
        tick()
    done.set()
""",
        steps=80,
    )
    assert leak.verdict in ("proven", "likely")
    assert leak.owner.source.startswith("threading.Thread(target=produce")
    assert leak.fix.startswith("let produce() return once nobody needs it")


def test_few_threads_that_each_keep_more_and_more(told: Told) -> None:
    leak = told(
        """
import threading

def handle(line):
    seen = []
    while line.get() is None:
        seen.append(torch.zeros(4096))

def main(tick):
    lines = [queue.Queue() for _ in range(3)]
    for line in lines:
        threading.Thread(target=handle, args=(line,), daemon=True).start()
    for number in range(STEPS):
        lines[number % 3].put(None)
        tick()
    for line in lines:
        line.put("the end")
""",
        steps=24,
    )
    assert not leak.fix.startswith("let handle() return")
