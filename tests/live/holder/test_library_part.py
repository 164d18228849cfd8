"""What a library's object keeps by itself: the advice is about what the user calls."""

from __future__ import annotations

import sys
import types

import pytest

torch = pytest.importorskip("torch")
import vramlens  # noqa: E402
from vramlens.live import LiveLeak  # noqa: E402

LIBRARY = """
class _Outputs:
    def __init__(self):
        self._kept = []

    def collect(self, result):
        self._kept.append(result)


class _PredictionLoop:
    def __init__(self):
        self._predictions = [[]]

    def collect(self, result):
        self._predictions[0].append(result)


class Metric:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

    def reset(self):
        self.values.clear()


class Plugins(Metric):
    def add_plugin(self, plugin):
        self.values.append(plugin)

    def remove_plugin(self, plugin):
        self.values.remove(plugin)


class State:
    def __init__(self):
        self.log_history = []


class Trainer:
    def __init__(self):
        self.state = State()

    def log(self, values):
        self.state.log_history.append({**values, "step": 1})

    def train(self, watch):
        for _ in range(12):
            self.compute()
            watch.step()


class Runner:
    def __init__(self, collector):
        self.collector = collector

    def run(self, task):
        task.runner = self
        for _ in range(12):
            self.collector.collect(task.predict())
            task.watch.step()
        task.leaks = task.watch.report().leaks
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A library that keeps every result of what it calls."""
    file = "/usr/lib/python3/site-packages/somelib/runner.py"
    module = types.ModuleType("somelib.runner")
    module.__file__ = file
    exec(compile(LIBRARY, file, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "somelib.runner", module)
    return module


class Task:
    def __init__(self) -> None:
        self.layer = torch.nn.Linear(100, 1000)
        self.watch = vramlens.LeakWatch()
        self.leaks: tuple[LiveLeak, ...] = ()

    def predict(self) -> object:
        with torch.no_grad():
            return self.layer(torch.randn(10, 100))


def test_no_advice_edits_a_library(library: types.ModuleType) -> None:
    task = Task()
    library.Runner(library._Outputs()).run(task)
    assert task.leaks[0].fix.startswith(
        "somelib keeps this itself, in _Outputs._kept: look for an option"
    )


def test_a_library_whose_option_is_known_names_it(library: types.ModuleType) -> None:
    task = Task()
    library.Runner(library._PredictionLoop()).run(task)
    assert task.leaks[0].fix.startswith("call trainer.predict(..., return_predictions=False)")


def test_the_method_that_empties_what_a_call_fills(library: types.ModuleType) -> None:
    metric, watch = library.Metric(), vramlens.LeakWatch()
    for _ in range(12):
        metric.update(torch.zeros(4096))
        watch.step()
    (leak,) = watch.report().found
    assert leak.fix.startswith("call metric.reset() when what it holds is done")


def test_the_method_that_takes_back_what_a_call_adds(library: types.ModuleType) -> None:
    plugins, watch = library.Plugins(), vramlens.LeakWatch()
    for _ in range(12):
        plugins.add_plugin(torch.zeros(4096))
        watch.step()
    (leak,) = watch.report().found
    assert leak.fix.startswith("call plugins.remove_plugin(...) for what is done")


def test_the_library_s_method_that_a_user_s_class_calls_by_self(library: types.ModuleType) -> None:
    """Neither the line that made the object nor the one that runs it says what it was given."""

    class MyTrainer(library.Trainer):  # type: ignore[misc,name-defined]
        def compute(self) -> None:
            scores = torch.zeros(4096)
            self.log({"scores": scores})

    trainer, watch = MyTrainer(), vramlens.LeakWatch()
    trainer.train(watch)
    (leak,) = watch.report().found
    assert leak.owner.source == 'self.log({"scores": scores})'
    assert leak.fix.startswith("give self.log(...) numbers (.item()) or smaller results: somelib")
    assert "State.log_history" in leak.fix
