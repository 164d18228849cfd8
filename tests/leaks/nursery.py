"""Runs programs of the corpus, each in a fork of one process that has imported torch: ``python
nursery.py``.

A line of JSON in, {"path", "watcher", "perturb"}, a line of JSON out. The process itself never
computes anything, so no thread pool and no CUDA context is there to be forked.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy  # noqa: F401 (what a user's process has by the time it trains)
import torch
import torch._dynamo  # the first optimizer imports it
import torch.utils.data
import torch.utils.viz._cycles

import vramlens
from leaks import collectors, measures

with contextlib.suppress(AttributeError, ImportError):  # the leak finder itself, once it is there
    vramlens.LeakWatch  # noqa: B018

TIME_LIMIT_S = 120.0


class ByteWatch:
    """Counts the bytes in use at each step's end."""

    current: ByteWatch

    def __init__(self) -> None:
        ByteWatch.current = self
        self.count = measures.byte_counter()
        self.bytes: list[int] = []
        self.kept: measures.Kept | None = None

    def step(self) -> None:
        self.bytes.append(self.count())
        if witness is not None:
            witness.step += 1

    def report(self) -> ByteWatch:
        """Stops counting, while the program's locals are alive."""
        if witness is not None:
            self.kept = witness.kept()
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "kept": self.kept}


witness: measures.Witness | None = None
_WATCHES: dict[str, Any] = {
    "bytes": ByteWatch,
    "witness": ByteWatch,
    "collector": collectors.CollectorWatch,
    "cycles": collectors.CyclesWatch,
}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """What the program's watch reports, in this process."""
    global witness
    torch.set_num_threads(1)
    torch.manual_seed(0)
    watcher, path = request["watcher"], request["path"]
    if watcher in _WATCHES:
        vramlens.__dict__["LeakWatch"] = _WATCHES[watcher]
    noise = _perturb(request.get("perturb"))
    found: dict[str, Any] = {}
    if watcher == "witness":
        witness = measures.Witness(path)
    with witness or contextlib.nullcontext():
        if request.get("perturb") == "threads":
            worker = threading.Thread(target=_execute, args=(path, found))
            worker.start()
            worker.join()
        else:
            _execute(path, found)
    noise.set()
    return found


def _execute(path: str, found: dict[str, Any]) -> None:
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    cpu_s = time.process_time()
    try:
        exec(compile(Path(path).read_text(), path, "exec"), module.__dict__)
        found["program_cpu_s"] = time.process_time() - cpu_s
        report = module.__dict__["report"] if "report" in module.__dict__ else module.watch.report()
        found["report"] = report.to_dict()
        found["facts"] = module.__dict__.get("facts")
    except BaseException:
        found["error"] = traceback.format_exc()
    found["cpu_s"] = time.process_time() - cpu_s


def _perturb(kind: str | None) -> threading.Event:
    """Makes the process harder to read: the collector blind, a heap of 300,000 objects more,
    threads that change it.
    """
    stop = threading.Event()
    if kind == "heap":
        sys.modules["crowd"] = types.ModuleType("crowd")
        sys.modules["crowd"].__dict__["objects"] = [{"key": [number]} for number in range(150_000)]
    elif kind == "freeze":
        gc.freeze()
    elif kind == "threads":
        mutated: dict[int, list[int]] = {}

        def mutate() -> None:
            number = 0
            while not stop.wait(0.001):
                for _ in range(50):
                    number += 1
                    mutated[number % 997] = [number]
                    mutated.pop((number * 7) % 997, None)

        threading.Thread(target=mutate, daemon=True).start()
    return stop


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a program prints must not come between the answers
    for line in sys.stdin:
        answers.write(_forked(json.loads(line)) + "\n")
        answers.flush()


def _forked(request: dict[str, Any]) -> str:
    return forked_by(run, request)


def forked_by(answer: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setpgid(0, 0)
        try:
            text = json.dumps(answer(request))
        except BaseException:
            text = json.dumps({"error": traceback.format_exc()})
        try:
            with os.fdopen(writing, "w") as pipe:
                pipe.write(text)
        finally:
            os._exit(0)  # no atexit, no waiting for the program's threads
    os.close(writing)
    text, deadline = b"", time.monotonic() + TIME_LIMIT_S
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 1 << 16) if ready else b""
        if not part:
            break
        text += part
    os.close(reading)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return text.decode() or json.dumps({"error": f"no answer within {TIME_LIMIT_S:.0f} s"})


if __name__ == "__main__":
    _serve()
