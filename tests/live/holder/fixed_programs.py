"""Small programs that leak, each with the fix that has to be told and the edit that its reader
makes. Run as a script, it says of each what was told and by how much the edited program grows.
"""

from __future__ import annotations

import gc
import json
import linecache
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS, FIRST = 14, 5
HEAD = """\
import asyncio, atexit, concurrent.futures, contextlib, dataclasses, functools, queue, sys, traceback, warnings, weakref
from collections import defaultdict, deque, namedtuple
import torch
layer = torch.nn.Linear(128, 128)
layer.weight.requires_grad_(False)
STEPS = 14

def batch():
    return torch.randn(128, 128)
"""


@dataclass(frozen=True)
class Case:
    """A program that leaks, and its fix.

    Attributes:
        name: what is kept.
        program: its text; ``main(tick)`` calls ``tick`` at the end of each step.
        advice: what the fix has to say.
        edits: what a reader of that does to the text: old and new.
    """

    name: str
    program: str
    advice: str
    edits: tuple[tuple[str, str], ...]


CASES = (
    Case(
        "a list in a frame that an exception keeps",
        """
class Reader:
    def __init__(self):
        self.rows = []
def start():
    reader = Reader()
    try:
        raise RuntimeError(weakref.ref(reader))
    except RuntimeError as error:
        return error
def main(tick):
    failure = start()
    reader = failure.args[0]
    for _ in range(STEPS):
        reader().rows.append(batch())
        tick()
""",
        "limit Reader.rows",
        (("rows.append(batch())", "rows[:] = [batch()]"),),
    ),
    Case(
        "futures as keys",
        """
class Ingest:
    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.jobs = {}
    def add(self, number):
        job = self.pool.submit(batch)
        self.jobs[job] = number
        return job
    def trim(self):
        pass
def main(tick):
    ingest = Ingest()
    for number in range(STEPS):
        ingest.add(number).result()
        ingest.trim()
        tick()
""",
        "{task: value for task, value in self.jobs.items() if not task.done()}",
        (
            (
                "        pass",
                "        self.jobs = {task: value for task, value in self.jobs.items() if not task.done()}",
            ),
        ),
    ),
    Case(
        "a running average by name, with its graph",
        """
class Meter:
    def __init__(self):
        self.values = {}
    def update(self, name, value):
        old = self.values.get(name, value)
        self.values[name] = 0.9 * old + 0.1 * value
def main(tick):
    meter = Meter()
    layer.weight.requires_grad_(True)
    for _ in range(STEPS):
        meter.update("spread", layer(batch()).square().mean())
        tick()
    layer.weight.requires_grad_(False)
""",
        "detach",
        (("0.1 * value", "0.1 * value.detach()"), ("(name, value)\n", "(name, value).detach()\n")),
    ),
    Case(
        "a heap whose longest part is asked for, and not used",
        """
import heapq
class Hardest:
    def __init__(self):
        self.heap = []
    def add(self, loss):
        heapq.heappush(self.heap, (loss, batch()))
        if len(self.heap) > 2:
            heapq.nlargest(2, self.heap)
def main(tick):
    hardest = Hardest()
    for number in range(STEPS):
        hardest.add(number)
        tick()
""",
        "(heapq.heappop(self.heap) while it has more than n): line 18 (heapq.nlargest(2, self.heap))"
        " only gives a new list, which nothing uses",
        (("heapq.nlargest(2, self.heap)", "heapq.heappop(self.heap)"),),
    ),
    Case(
        "saved tensors that are packed into a table",
        """
class Store:
    def __init__(self):
        self.slots = {}
    def pack(self, tensor):
        self.slots[len(self.slots)] = tensor.half()
        return len(self.slots) - 1
    def unpack(self, slot):
        return self.slots[slot].float()
def main(tick):
    store = Store()
    for number in range(STEPS):
        x = batch().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(store.pack, store.unpack):
            y = layer(x).square().sum()
        y.backward()
        del x, y
        tick()
""",
        "take each out where unpack reads it (line 18): self.slots.pop(slot) instead of"
        " self.slots[slot]",
        (("self.slots[slot].float()", "self.slots.pop(slot).float()"),),
    ),
    Case(
        "methods of jobs that a bus keeps",
        """
class Bus:
    def __init__(self):
        self.handlers = {"weights": []}
    def on(self, topic, handler):
        self.handlers[topic].append(handler)
class Job:
    def __init__(self, bus):
        self.pixels = batch()
        bus.on("weights", self.refresh)
    def refresh(self):
        pass
def main(tick):
    bus = Bus()
    for number in range(STEPS):
        job = Job(bus)
        tick()
""",
        "remove them when they are done: line 19 (bus.on('weights', self.refresh)) adds each",
        (("        job = Job(bus)", '        job = Job(bus); bus.handlers["weights"].clear()'),),
    ),
    Case(
        "a row of an array in a named tuple",
        """
Landmark = namedtuple("Landmark", "frame score vector")
def main(tick):
    landmarks = []
    for frame in range(STEPS):
        cells = batch().numpy()
        landmarks.append(Landmark(frame, 0.5, cells[3]))
        tick()
""",
        "keep cells[3].copy() instead: a view keeps the whole 64.00 KiB behind it",
        (("cells[3]", "cells[3].copy()"),),
    ),
    Case(
        "a row of a tensor in a data class",
        """
@dataclasses.dataclass
class Landmark:
    frame: int
    vector: torch.Tensor
def main(tick):
    landmarks = []
    for frame in range(STEPS):
        cells = batch()
        landmarks.append(Landmark(frame, vector=cells[3]))
        tick()
""",
        "keep cells[3].clone() instead",
        (("cells[3]", "cells[3].clone()"),),
    ),
    Case(
        "a row of an array",
        """
def main(tick):
    rows = []
    for _ in range(STEPS):
        rows.append(batch().numpy()[3])
        tick()
""",
        "keep batch().numpy()[3].copy() instead",
        (("[3]", "[3].copy()"),),
    ),
    Case(
        "values that refer to their weak keys",
        """
class Episode:
    def __init__(self, number):
        self.number, self.images = number, batch()
@dataclasses.dataclass
class Adapted:
    source: object
    score: float
def main(tick):
    adapted = weakref.WeakKeyDictionary()
    for number in range(STEPS):
        episode = Episode(number)
        adapted[episode] = Adapted(episode, 0.5)
        tick()
""",
        "keep a number, or weakref.ref(...), in Adapted.source",
        (("Adapted(episode, 0.5)", "Adapted(episode.number, 0.5)"),),
    ),
    Case(
        "methods of their weak keys",
        """
class Episode:
    def __init__(self):
        self.images = batch()
    def score(self):
        return self.images.mean()
def main(tick):
    scores = weakref.WeakKeyDictionary()
    for _ in range(STEPS):
        episode = Episode()
        scores[episode] = episode.score
        tick()
""",
        "keep weakref.WeakMethod(...) in place of the bound method",
        (("= episode.score", "= weakref.WeakMethod(episode.score)"),),
    ),
    Case(
        "tuples with their weak keys",
        """
class Episode:
    def __init__(self, number):
        self.number, self.images = number, batch()
def main(tick):
    adapted = weakref.WeakKeyDictionary()
    for number in range(STEPS):
        episode = Episode(number)
        adapted[episode] = (episode, 0.5)
        tick()
""",
        "keep a number, or weakref.ref(...), in place of the key in each value",
        (("(episode, 0.5)", "(weakref.ref(episode), 0.5)"),),
    ),
    Case(
        "a state in two parts",
        """
lstm = torch.nn.LSTM(128, 128)
class Reader:
    state = None
    def read(self, chunk):
        out, self.state = lstm(chunk, self.state)
        return out
def main(tick):
    reader = Reader()
    for _ in range(STEPS):
        assert reader.read(batch()).shape == (128, 128)
        tick()
""",
        "self.state = tuple(value.detach() for value in self.state)",
        (
            (
                "        return out",
                "        self.state = tuple(value.detach() for value in self.state)\n"
                "        return out",
            ),
        ),
    ),
    Case(
        "numbers beside losses",
        """
series = defaultdict(list)
def log(values):
    for name, value in values.items():
        series[name].append(value)
def main(tick):
    for step in range(STEPS):
        log({"step": 0.5, "loss": layer(batch()).square().mean()})
        tick()
        assert float(series["loss"][-1]) >= 0
""",
        "keep (value.item() if torch.is_tensor(value) else value) instead of value",
        (("append(value)", "append((value.item() if torch.is_tensor(value) else value))"),),
    ),
    Case(
        "a context",
        """
class Square(torch.autograd.Function):
    contexts = []
    @staticmethod
    def forward(ctx, x):
        ctx.inside = x.abs() < 1
        ctx.save_for_backward(x)
        Square.contexts.append(ctx)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        return grad
def main(tick):
    for _ in range(STEPS):
        Square.apply(layer(batch())).sum().backward()
        tick()
""",
        "keep numbers (.item(), .tolist()) of ctx.inside instead of ctx",
        (("append(ctx)", "append(ctx.inside.sum().item())"),),
    ),
    Case(
        "a distribution that the statement makes",
        """
class Agent:
    def __init__(self):
        self.kept = []
    def policy(self, x):
        return torch.distributions.Normal(layer(x).mean(0).exp(), layer(x).std(0).exp())
def main(tick):
    agent = Agent()
    for _ in range(STEPS):
        agent.kept.append(agent.policy(batch()))
        tick()
        assert agent.kept[-1].variance.numel()
""",
        "or make agent.policy(batch()) under torch.no_grad()",
        (("agent.kept.append(", "with torch.no_grad(): agent.kept.append("),),
    ),
    Case(
        "a dict of outputs",
        """
kept = []
def main(tick):
    for step in range(STEPS):
        out = {"step": step, "score": layer(batch()).exp().sum(0)}
        kept.append(out)
        tick()
        assert kept[-1]["score"].numel()
""",
        "keep {key: value.detach() if torch.is_tensor(value) else value for key, value in"
        " out.items()} instead of out",
        (
            (
                "append(out)",
                "append({key: value.detach() if torch.is_tensor(value) else value"
                " for key, value in out.items()})",
            ),
        ),
    ),
    Case(
        "a list that goes on",
        """
kept = []
def main(tick):
    for _ in range(STEPS):
        parts = [layer(batch()).exp().sum(0), layer(batch()).exp().sum(1)]
        kept.extend(parts)
        tick()
""",
        "keep [value.detach() for value in parts] instead of parts",
        (("extend(parts)", "extend([value.detach() for value in parts])"),),
    ),
    Case(
        "an exception that is raised from",
        """
class Runner:
    last_error = None
    def check(self):
        rows = batch()
        raise ValueError("bad") from self.last_error
def main(tick):
    runner = Runner()
    for _ in range(STEPS):
        try:
            runner.check()
        except ValueError as error:
            runner.last_error = error
        tick()
""",
        "keep error.with_traceback(None) instead of error",
        (("= error\n", "= error.with_traceback(None)\n"),),
    ),
    Case(
        "exceptions that are read",
        """
class BatchError(ValueError):
    def __init__(self, number):
        super().__init__(number)
        self.number = number
failures = []
def fail(number):
    rows = batch()
    raise BatchError(number)
def main(tick):
    for number in range(STEPS):
        try:
            fail(number)
        except ValueError as problem:
            failures.append(problem)
        tick()
    assert [failure.number for failure in failures] == list(range(STEPS))
""",
        "keep problem.with_traceback(None) instead of problem",
        (("append(problem)", "append(problem.with_traceback(None))"),),
    ),
    Case(
        "exceptions with tensors",
        """
class BatchError(ValueError):
    def __init__(self, rows):
        super().__init__("bad")
        self.rows = rows
failures = []
def fail():
    rows = batch()
    raise BatchError(rows)
def main(tick):
    for number in range(STEPS):
        try:
            fail()
        except BatchError as error:
            failures.append(error)
        tick()
""",
        "keep repr(error) instead of error",
        (("append(error)", "append(repr(error))"),),
    ),
    Case(
        "recorded warnings",
        """
class SpikeWarning(UserWarning):
    def __init__(self, rows):
        super().__init__("spike")
        self.rows = rows
def check(rows):
    warnings.warn(SpikeWarning(rows))
def main(tick):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            check(batch())
            tick()
    assert len(caught) >= STEPS
""",
        "keep a number or text instead of the tensor in SpikeWarning.rows: caught keeps every"
        " warning",
        (("self.rows = rows", "self.rows = len(rows)"),),
    ),
    Case(
        "functions for the exit",
        """
def write(state):
    pass
def main(tick):
    last = None
    for _ in range(STEPS):
        atexit.register(functools.partial(write, batch()))
        tick()
""",
        "last = atexit.register(...), and call atexit.unregister(last) before the next",
        (
            (
                "        atexit.register(",
                "        atexit.unregister(last)\n        last = atexit.register(",
            ),
        ),
    ),
    Case(
        "a defaultdict that reads fill",
        """
class Profiles:
    def __init__(self):
        self.by_user = defaultdict(batch)
    def taste(self, user):
        return self.by_user[user]
def main(tick):
    profiles = Profiles()
    for visitor in range(STEPS):
        profiles.taste(f"visitor {visitor}")
        tick()
""",
        "reading a missing key adds it: .get(key) does not",
        (("return self.by_user[user]", "return self.by_user.get(user)"),),
    ),
    Case(
        "contexts in one stack",
        """
@contextlib.contextmanager
def speaking_as(rows):
    yield rows
def main(tick):
    with contextlib.ExitStack() as scope:
        for _ in range(STEPS):
            scope.enter_context(speaking_as(batch()))
            tick()
""",
        "enter each context where it is used, in a with statement of its own",
        (
            (
                "scope.enter_context(speaking_as(batch()))",
                "with speaking_as(batch()):\n                pass",
            ),
        ),
    ),
    Case(
        "tasks in a set",
        """
class Gateway:
    def __init__(self):
        self.background = set()
    async def write(self, rows):
        return rows
    async def handle(self):
        task = asyncio.create_task(self.write(batch()))
        self.background.add(task)
        await asyncio.sleep(0)
async def serve(tick):
    gateway = Gateway()
    for _ in range(STEPS):
        await gateway.handle()
        await asyncio.sleep(0)
        tick()
def main(tick):
    asyncio.run(serve(tick))
""",
        "task.add_done_callback(self.background.discard)",
        (
            (
                "background.add(task)\n",
                "background.add(task)\n        task.add_done_callback(self.background.discard)\n",
            ),
        ),
    ),
    Case(
        "tasks that wait for a reader who has left",
        """
class Stories:
    def __init__(self):
        self.background = set()
    async def produce(self, rows, chunks):
        for part in rows.split(8):
            await chunks.put(part)
    async def tell(self):
        chunks = asyncio.Queue(maxsize=1)
        task = asyncio.create_task(self.produce(batch(), chunks))
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        await chunks.get()
async def serve(tick):
    stories = Stories()
    for _ in range(STEPS):
        await stories.tell()
        await asyncio.sleep(0)
        tick()
def main(tick):
    asyncio.run(serve(tick))
""",
        "cancel each task when nobody takes its results any more (task.cancel())",
        (("await chunks.get()\n", "await chunks.get()\n        task.cancel()\n"),),
    ),
    Case(
        "tasks that are gathered",
        """
async def write(rows):
    return rows
async def serve(tick):
    tasks = []
    for _ in range(STEPS):
        tasks.append(asyncio.create_task(write(batch())))
        await asyncio.sleep(0)
        tick()
    await asyncio.gather(*tasks)
def main(tick):
    asyncio.run(serve(tick))
""",
        "tasks = [task for task in tasks if not task.done()]",
        (
            (
                "        tick()",
                "        tasks = [task for task in tasks if not task.done()]\n        tick()",
            ),
        ),
    ),
    Case(
        "futures of a pool",
        """
class Loader:
    def __init__(self, pool):
        self.pool, self.futures = pool, {}
    def load(self, number):
        self.futures[number] = self.pool.submit(batch)
        return self.futures[number].result()
def main(tick):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        loader = Loader(pool)
        for number in range(STEPS):
            loader.load(number)
            tick()
""",
        "self.futures = {key: task for key, task in self.futures.items() if not task.done()}",
        (
            (
                "        return self.futures[number].result()",
                "        result = self.futures[number].result()\n"
                "        self.futures = {key: task for key, task in self.futures.items()"
                " if not task.done()}\n        return result",
            ),
        ),
    ),
    Case(
        "a removal that never runs",
        """
class WriteBehind:
    def __init__(self):
        self.dirty = {}
    def put(self, number):
        self.dirty[number, "a"] = batch()
        self.dirty[number, "b"] = batch()
        if len(self.dirty) == 5:
            self.flush()
    def flush(self):
        self.dirty.clear()
def main(tick):
    store = WriteBehind()
    for number in range(STEPS):
        store.put(number)
        tick()
""",
        "make line 20 (self.dirty.clear()) take these entries out, which it has not done so far",
        (("len(self.dirty) == 5", "len(self.dirty) >= 4"),),
    ),
    Case(
        "a table beside one that is emptied",
        """
class Desk:
    def __init__(self):
        self.turns, self.states = {}, {}
    def open(self, ticket):
        self.turns[ticket] = 0
    def turn(self, ticket):
        self.states[ticket] = batch()
        self.turns[ticket] += 1
    def close(self, ticket):
        return self.turns.pop(ticket)
def main(tick):
    desk = Desk()
    for ticket in range(STEPS):
        desk.open(ticket)
        desk.turn(ticket)
        desk.close(ticket)
        tick()
""",
        "take the key out of self.states, too, where line 20 (return self.turns.pop(ticket)) is done"
        " with it",
        (("        return self", "        self.states.pop(ticket)\n        return self"),),
    ),
    Case(
        "an object whose own method is to run when it goes",
        """
import weakref
class Trial:
    def __init__(self):
        self.weight, self.log = batch(), []
        weakref.finalize(self, self.flush)
    def flush(self):
        self.log.clear()
def main(tick):
    for _ in range(STEPS):
        Trial()
        tick()
""",
        "give weakref.finalize a function that does not hold self: its method flush keeps self alive",
        (("weakref.finalize(self, self.flush)", "weakref.finalize(self, list.clear, self.log)"),),
    ),
    Case(
        "exceptions in entries whose type is asked for",
        """
errors = []
def read(number):
    values = batch()
    raise ValueError(number)
def note(number, exc):
    errors.append((number, exc))
def kinds():
    return {type(exc).__name__ for _, exc in errors}
def main(tick):
    for number in range(STEPS):
        try:
            read(number)
        except ValueError as exc:
            note(number, exc)
        tick()
    assert kinds() == {"ValueError"}
""",
        "keep exc.with_traceback(None) instead of exc",
        (("(number, exc))", "(number, exc.with_traceback(None)))"),),
    ),
    Case(
        "a tensor that is made anew, larger",
        """
class Sentinel:
    def __init__(self):
        self.seen = torch.zeros(0, 128)
    def look(self, rows):
        self.seen = torch.cat([self.seen, rows])
        return self.seen[-128:].mean()
def main(tick):
    sentinel = Sentinel()
    for _ in range(STEPS):
        sentinel.look(batch())
        tick()
""",
        "cut self.seen to the rows that are still used (self.seen = self.seen[-n:])",
        (
            (
                "        return self.seen[-128:]",
                "        self.seen = self.seen[-128:]\n        return self.seen[-128:]",
            ),
        ),
    ),
    Case(
        "threads that wait for a reader who has left",
        """
import itertools, threading
def produce(line):
    rows = torch.randn(512, 512)
    for row in rows:
        line.put(row.sum())
def main(tick):
    for _ in range(STEPS):
        line = queue.Queue(maxsize=2)
        threading.Thread(target=produce, args=(line,), daemon=True).start()
        for _ in range(5):
            line.get()
        tick()
""",
        "let produce() return once nobody needs it, by a timeout or an event: its threads wait",
        (("for row in rows:", "for row in itertools.islice(rows, 5):"),),
    ),
    Case(
        "hooks of a parameter",
        """
gate = torch.nn.Linear(128, 128)
def forward(x):
    hidden = x * 2
    def scale(grad):
        return grad * hidden.mean()
    gate.weight.register_hook(scale)
    return gate(hidden)
def main(tick):
    for _ in range(STEPS):
        forward(batch()).sum().backward()
        gate.zero_grad()
        tick()
""",
        "keep the handle, handle = gate.weight.register_hook(scale), and call handle.remove()",
        (
            (
                "    gate.weight.register_hook(scale)",
                "    global handle\n"
                "    if 'handle' in globals():\n"
                "        handle.remove()\n"
                "    handle = gate.weight.register_hook(scale)",
            ),
        ),
    ),
    Case(
        "a hook whose handle is kept",
        """
layer = torch.nn.Linear(128, 128)
class Recorder:
    def __init__(self, reference):
        self.reference = reference
        self.handle = layer.register_forward_hook(self.compare)
    def compare(self, module, inputs, output):
        self.drift = float((output.detach() - self.reference).norm())
def main(tick):
    for _ in range(STEPS):
        recorder = Recorder(batch())
        layer(batch())
        tick()
""",
        "call self.handle.remove() when the hook is no longer needed",
        (("        layer(batch())", "        layer(batch())\n        recorder.handle.remove()"),),
    ),
    Case(
        "hooks whose handles are in a list",
        """
layer = torch.nn.Linear(128, 128)
handles = []
def main(tick):
    for _ in range(STEPS):
        scale = batch()
        handles.append(layer.register_forward_hook(lambda m, i, o, s=scale: o * s))
        layer(batch())
        tick()
""",
        "call remove() of each handle in handles when the hook is no longer needed",
        (
            (
                "        layer(batch())",
                "        layer(batch())\n        for handle in handles: handle.remove()",
            ),
        ),
    ),
    Case(
        "hooks of a loop, whose last handle alone is kept",
        """
layers = [torch.nn.Linear(128, 128) for _ in range(3)]
def steered(push, x):
    for layer in layers:
        handle = layer.register_forward_hook(lambda m, i, o: o + push)
    for layer in layers:
        x = layer(x)
    handle.remove()
    return x
def main(tick):
    for _ in range(STEPS):
        steered(batch(), batch())
        tick()
""",
        "keep all handles of the loop in a list (handle is only the last one), and call remove() of"
        " each when the hooks are no longer needed",
        (
            (
                "    for layer in layers:\n        handle = layer",
                "    handles = []\n    for layer in layers:\n        handle = layer",
            ),
            ("o + push)", "o + push)\n        handles.append(handle)"),
            ("    handle.remove()", "    for handle in handles: handle.remove()"),
        ),
    ),
    Case(
        "a module made anew with hooks that refer to it",
        """
class Adapter(torch.nn.Linear):
    def __init__(self):
        super().__init__(128, 128)
        def hook(module, inputs):
            self.seen = inputs
        self.register_forward_pre_hook(hook)
def main(tick):
    gc_was_on = sys.modules['gc'].isenabled()
    sys.modules['gc'].disable()
    for _ in range(STEPS):
        adapter = Adapter()
        adapter(torch.ones(1, 128))
        tick()
    if gc_was_on:
        sys.modules['gc'].enable()
""",
        "keep the handle, handle = self.register_forward_pre_hook(hook), and call handle.remove()",
        (
            (
                "        self.register_forward_pre_hook(hook)",
                "        self.handle = self.register_forward_pre_hook(hook)",
            ),
            (
                "        adapter(torch.ones(1, 128))",
                "        adapter(torch.ones(1, 128))\n        adapter.handle.remove()",
            ),
        ),
    ),
    Case(
        "entries of calls that were cancelled",
        """
class Server:
    def __init__(self):
        self.running = {}
    async def serve(self, number, answer):
        self.running[number] = batch()
        await answer
        del self.running[number]
async def rounds(tick):
    server, loop = Server(), asyncio.get_running_loop()
    for step in range(STEPS):
        served = loop.create_future()
        served.set_result(None)
        await server.serve(-step, served)
        task = loop.create_task(server.serve(step, loop.create_future()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        tick()
def main(tick):
    asyncio.run(rounds(tick))
""",
        "put line 17 (del self.running[number]) into a finally",
        (
            (
                "        await answer\n        del self.running[number]",
                "        try:\n            await answer\n        finally:\n"
                "            del self.running[number]",
            ),
        ),
    ),
)


def module_of(path: Path, text: str) -> types.ModuleType:
    """A program of the user's, loaded from a file."""
    path.write_text(text)
    linecache.checkcache(str(path))
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def leak_of(path: Path, case: Case) -> Any:
    """What is said of the program, at its last step."""
    leaks: list[Any] = []
    import vramlens

    watch = vramlens.LeakWatch()

    def tick() -> None:
        watch.step()
        if watch.steps == STEPS:
            leaks.extend(watch.report().leaks)

    module = module_of(path, HEAD + case.program)
    try:
        module.main(tick)
    finally:
        del sys.modules[path.stem]
    return max(leaks, key=lambda leak: leak.bytes_per_step)


def growth_of(path: Path, text: str, count: Callable[[], int]) -> float:
    """By how many bytes a step the program grows, as malloc says."""
    counts: list[int] = []

    def tick() -> None:
        gc.collect()
        counts.append(count())

    module = module_of(path, text)
    gc.collect()
    gc.freeze()  # else the collector goes through all of PyTorch at the end of each step
    try:
        module.main(tick)
    finally:
        gc.unfreeze()
        del sys.modules[path.stem]
    return (counts[-1] - counts[FIRST]) / (len(counts) - 1 - FIRST)


def outcome_of(folder: Path, number: int, count: Callable[[], int]) -> dict[str, Any]:
    """What is told of a program, and how it grows with the fix in it."""
    case = CASES[number]
    leak = leak_of(folder / f"leaking_{number}.py", case)
    fixed = case.program
    for old, new in case.edits:
        assert fixed.count(old) == 1, old
        fixed = fixed.replace(old, new)
    return {
        "fix": leak.fix,
        "bytes_per_step": leak.bytes_per_step,
        "stays": leak.bytes_per_step - leak.fix_bytes_per_step,
        "growth": growth_of(folder / f"fixed_{number}.py", HEAD + fixed, count),
    }


def main(folder: Path) -> None:
    """Writes the outcomes of all cases."""
    from leaks.measures import byte_counter

    count = byte_counter()
    outcomes: dict[str, Any] = {}
    for number, case in enumerate(CASES):
        try:
            outcomes[case.name] = outcome_of(folder, number, count)
        except Exception as error:
            outcomes[case.name] = {"error": repr(error)}
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
