"""Runs wild programs, each in a fork of one process that has imported the frameworks:
``python -c "from leaks.wild_nursery import serve; serve()" FRAMEWORK...``.

A line of JSON in, {"path", "way"}, a line of JSON out. Ways: "live" and "no_leaks" run the program
with ``tick()`` and ``done()``; "script" is ``vramlens run --leaks``; "bytes" counts what malloc
holds at each tick.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import traceback
import types
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.utils.data

import vramlens
from leaks import measures
from leaks.nursery import forked_by
from vramlens.live.leak_scope import LeakError


def run(request: dict[str, Any]) -> dict[str, Any]:
    """What is said of the program, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        return _WAYS[request["way"]](Path(request["path"]))
    except BaseException:
        return {"error": traceback.format_exc()}


def _execute(path: Path, **names: Any) -> None:
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    module.__dict__.update(names)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)


def _live(path: Path) -> dict[str, Any]:
    watch, reports = vramlens.LeakWatch(), []

    def done() -> None:
        reports.append(watch.report())

    _execute(path, tick=watch.step, done=done)
    return {"report": reports[0].to_dict(), "text": str(reports[0])}


def _no_leaks(path: Path) -> dict[str, Any]:
    block = vramlens.no_leaks(steps=5)
    watch = block.__enter__()
    errors: list[LeakError] = []

    def done() -> None:
        try:
            block.__exit__(None, None, None)
        except LeakError as error:
            errors.append(error)

    _execute(path, tick=watch.step, done=done)
    if not errors:
        return {"raised": False, "text": ""}
    return {"raised": True, "text": str(errors[0]), "report": errors[0].report.to_dict()}


def _script(path: Path) -> dict[str, Any]:
    from vramlens.capture.recording.session import current_session
    from vramlens.cli.main import main
    from vramlens.live.follow import LeakFollower

    conclusions = []
    conclude = LeakFollower.conclusion

    def kept_conclusion(follower: LeakFollower) -> Any:
        conclusions.append(conclude(follower))
        return conclusions[-1]

    LeakFollower.conclusion = kept_conclusion
    text = io.StringIO()
    with redirect_stderr(text):
        main(["run", "--leaks", "-o", str(path.parent), str(path)])
        session = current_session()
        assert session is not None
        session._at_exit()
    report = (
        conclusions[-1].to_dict() if conclusions and conclusions[-1] is not None else {"leaks": []}
    )
    return {"report": report, "text": text.getvalue()}


def _bytes(path: Path) -> dict[str, Any]:
    import gc

    count, counted = measures.byte_counter(), []
    gc.freeze()  # a collection at each tick is of the program's objects only

    def tick() -> None:
        gc.collect()
        counted.append(count())

    _execute(path, tick=tick, done=lambda: None)
    return {"bytes": counted}


_WAYS = {"live": _live, "no_leaks": _no_leaks, "script": _script, "bytes": _bytes}


def serve() -> None:
    """Answers requests until there are no more."""
    for framework in sys.argv[1:]:
        with suppress(ImportError):
            importlib.import_module(framework)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(forked_by(run, json.loads(line)) + "\n")
        answers.flush()
