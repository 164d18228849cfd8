"""Stores that keep something of each turn: lists of outputs, states of metrics, caches, copies of the
weights.

Where the process named its tensors, one name with many numbers says who keeps them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.names import CACHE, LAST_KEY, SLICE, Names, store_words
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.attribution.training import Training, turns_with
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.unnamed_entries import MANY_NAMED, with_unnamed_entries
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import base_name
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import agreeing, counted, format_size

_ENTRY = re.compile(r"^(?P<store>[^\[]+)\[(?P<key>[^\[\]]*)\]")
"""``model.ap.target[3]``, ``Buffer.rows['a'].x``: one entry of a list or dict that somebody holds."""
_NOBODYS = ("list", "tuple", "deque")
"""Containers that nobody is known to hold: one of them is not another, but by the line of its entries."""
_OF_CHECKPOINTS = ("_CheckpointFrame.", "WeakKeyDictionary")
_CHECKPOINT = re.compile(r"[/\\]torch[/\\]utils[/\\]checkpoint\.py:")
"""PyTorch's own: what a checkpoint has computed again for the backward pass that runs."""
_OTHERS_TELL = re.compile(r"\.__(?:kw)?defaults__$|\._\w*_hooks$")
"""The default arguments of functions (``default_argument``), and hooks (``left_hooks``)."""
_NOBODYS_DICTS = ("dict", "defaultdict", "OrderedDict", "WeakKeyDictionary.data")
_AVERAGE = re.compile(
    r"(?:^|[._])(?:ema|Ema|EMA|avg)(?![a-z])|[Ss]hadow|[Aa]verage|[Mm]omentum|[Tt]eacher"
)
"""In names of copies of the weights that each step writes to."""
_MOSTLY = 0.9
"""Of the entries of a store, that are alike: one may be a counter, or a tensor that is small and whole."""
_OF_FUNCTIONS = re.compile(r"^(?P<maker>[\w.]+?)\.<locals>\.")
"""What a function collects that each call of another one makes anew."""
_KNOWN_STORES = (
    (
        re.compile(r"^(?:Future\._result|Task\._result)$"),
        "results of jobs wait there until somebody takes them",
        "submit only a few jobs ahead of their use; or let each job return its result on the CPU"
        " (`.cpu()`), and move that back where it is used",
    ),
    (
        re.compile(r"^(?:Queue\.queue|SimpleQueue\._queue|Queue\._queue)$"),
        "what is put there waits until somebody takes it",
        "give the queue a bound, Queue(maxsize=4), so that put() waits for whoever takes; or put"
        " tensors on the CPU there, and move each as it is used",
    ),
    (
        re.compile(r"^itertools\.cycle$"),
        "it keeps all that its first pass gives, to give it again",
        "begin the loader anew instead (of a DataLoader, not of a generator: while True: yield"
        " from loader); or cycle over what is not on the GPU yet, and move each batch as it is"
        " used",
    ),
)
"""By name, what says that it need not keep it, and what to change: where concurrent.futures, asyncio and queue keep
what a job has made; what goes round.
"""
_METRIC = re.compile(r"[/\\]torchmetrics[/\\]")
_FEWEST_ENTRIES, _FEWEST_OF_LINE = 8, 5
"""Fewer are the layers of a model, or what a step has at once; those of one line and as many passes can be
fewer.
"""
_SEVERAL_METRICS = 1.05
"""Times what the largest metric keeps: less are counters beside it."""
_FEWEST_OF_LOOP, _FEWEST_BETWEEN_PASSES = 16, 32
"""Turns of a loop without a model that each left something in a store of the program; turns that each left one thing
there between the passes of a model.
"""
_FEWEST_RESULTS = 3
"""Of one evaluation: a teacher's for two views of a batch are none."""
_FEWEST_BETWEEN, _FEWEST_BETWEEN_OTHERS = 2, 4
"""Backward passes between two evaluations: a rollout comes before each update."""
_MODULE = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")
_FEWEST_OBJECTS = 3
_OF_GRADIENT = re.compile(r"\.grad\b")
_FEWEST_OF_KEY = 4
_FEWEST_STEPS = 3
"""In which copies came: those of one step are what it needs at once (the tasks of meta-learning)."""
_LEAST_SHARE = 0.25
_NO_LINE = -1
_NOTHING_ELSE = 0.5
"""Of what is collected, that the passes keep beside it: a graph keeps many times as much."""


@dataclass(frozen=True, slots=True)
class _Store:
    """What one name with many numbers leads to.

    Attributes:
        name: of the store.
        rows: the allocations.
        size_bytes: of all of them.
        filled_by: the line that fills it, where nobody is known to hold it; else "".
    """

    name: str
    rows: NDArray[np.int64]
    size_bytes: int
    filled_by: str = ""

    @property
    def in_words(self) -> str:
        """Its name, with an article where that is none of the program's."""
        return store_words(self.name)


@after_failure
def kept_in_store(scene: Scene) -> Iterator[Finding]:
    """The store that keeps the most when memory runs out, if that is much of all."""
    stores = list(_stores(scene))
    largest = max(stores, key=lambda store: store.size_bytes, default=None)
    if largest is None:
        return
    if _is_metrics(scene, largest.rows):
        largest = _all_metrics(scene, largest, stores)
    if largest.size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    verdict, evidence, remedy = _judged(scene, largest)
    yield Finding(
        id="kept_in_store",
        verdict=verdict,
        title=f"{counted(len(largest.rows), 'tensor')} in {largest.in_words} hold"
        f" {scene.part_of_heap(largest.size_bytes)}",
        bytes=largest.size_bytes,
        place=scene.view.place_of_block(int(largest.rows[-1])),
        evidence=(evidence,) if evidence else (),
        fix=f"{remedy} (up to {format_size(largest.size_bytes)} less)",
        extent=scene.extent(largest.rows),
    )


def _all_metrics(scene: Scene, largest: _Store, stores: Sequence[_Store]) -> _Store:
    """The largest of several metrics, with what the others keep: one edit is for all."""
    metrics = [store.rows for store in stores if _is_metrics(scene, store.rows)]
    rows = np.unique(np.concatenate(metrics))
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _SEVERAL_METRICS * largest.size_bytes:
        return largest  # counters
    return _Store(f"{largest.name} and other metrics", rows, size_bytes)


def _judged(scene: Scene, store: _Store) -> tuple[Verdict, str, str]:
    """How surely a store need not keep it, what says so, and what to change."""
    by_name = _judged_by_name(scene, store)
    if by_name is not None:
        return by_name
    if _is_metrics(scene, store.rows):
        return (
            Verdict.LIKELY,
            "a metric of torchmetrics keeps all predictions and targets there, more with every"
            " batch",
            "give the metric a state of fixed size (thresholds=200 where it has them: its result"
            " is then approximate), or compute_on_cpu=True",
        )
    if _are_gradients_of_passes(scene, store.rows):
        return (
            Verdict.LIKELY,
            "each parameter has a list there, with its gradient of every backward pass",
            "add them up as they come, in one tensor a parameter (total[name] += p.grad ** 2 for a"
            " Fisher diagonal), instead of keeping each; or keep them on the CPU (`.cpu()`)",
        )
    if _is_copy_of_weights(scene, store.rows):
        return (
            Verdict.LIKELY if _is_written_once(scene, store) else Verdict.POSSIBLE,
            "its keys are the names of parameters: it is a copy of the weights",
            "if the steps do not change that copy, keep it on the CPU (`.cpu()`), or copy only the"
            " parameters that you will change",
        )
    if _is_of_several_steps(scene, store.rows):
        return (
            Verdict.LIKELY,
            "its keys are the names of parameters, and a copy came with every few steps: they are"
            " the weights of models that are done",
            "keep these weights on the CPU: {name: value.cpu() for name, value in"
            " model.state_dict().items()}",
        )
    if _are_slices(scene.view.names, store.rows):
        return (
            Verdict.LIKELY if _keeps_little_beside(scene, store.rows) else Verdict.POSSIBLE,
            "each entry is a slice, and keeps all of the tensor that it was taken from",
            "clone each slice before it is kept, here and wherever else one of the same tensor is"
            " (`x[i].clone()`)",
        )
    kept = (
        f"the results of {store.filled_by}"
        if store.filled_by
        else f"what {store.in_words} collects"
    )
    remedy = f"keep {kept} on the CPU (`.cpu()`; move back what is used on the GPU), or only what you need of it"
    if _is_of_ended_evaluations(scene, store.rows):
        return (
            Verdict.LIKELY,
            "it still has the results of evaluations that ended, and the model was trained since",
            f"empty it when an evaluation ends ({store.name}.clear(), with Lightning in"
            " on_validation_epoch_end), or keep only numbers there; what is still needed, on the CPU (`.cpu()`)",
        )
    if _are_outputs(scene, store):
        return Verdict.LIKELY, "each turn leaves its results there, and no graph", remedy
    if _is_moved_data(scene, store):
        return Verdict.LIKELY, *_of_data(scene, remedy)
    return Verdict.POSSIBLE, "", remedy


def _judged_by_name(scene: Scene, store: _Store) -> tuple[Verdict, str, str] | None:
    """The same, where the store's name says enough; else None."""
    cache = CACHE.match(store.name)
    if cache is not None:
        return (
            Verdict.LIKELY if cache["size"] else Verdict.POSSIBLE,
            "it keeps a result for each of its arguments",
            f"limit it to a few (functools.lru_cache(maxsize=4): {len(store.rows):,} were kept), or"
            " compute the result anew",
        )
    maker = _OF_FUNCTIONS.match(store.name)
    if maker is not None and _are_of_several(scene.view.names, store.rows):
        return (
            Verdict.LIKELY,
            f"functions that earlier calls of {maker['maker']}() made are alive, and keep what"
            " they collected",
            f"where {maker['maker']}() registers a function (a hook, a callback), remove it before"
            " the call ends (handle.remove()): else each call adds one, and all of them go on"
            " collecting",
        )
    objects = _objects_with_hooks(scene, store)
    if objects >= _FEWEST_OBJECTS:
        owner = store.name.partition(".")[0]
        return (
            Verdict.LIKELY,
            f"{objects} {owner} objects are alive, and hooks on the model fill each of them: those"
            " of earlier calls were not removed",
            f"remove the hooks of a {owner} when it has done its work (handle.remove() for each"
            " that register_forward_hook() gave): else each call adds some, and all of them go on"
            " collecting",
        )
    for pattern, evidence, remedy in _KNOWN_STORES:
        if pattern.match(store.name):
            return Verdict.LIKELY, evidence, remedy
    return None


def _of_data(scene: Scene, remedy: str) -> tuple[str, str]:
    """What says that it is data, and what to change: data that a model waits for is needed soon."""
    if not scene.view.modules.marked.any():
        return "it was moved to the GPU before any model ran: it is data", remedy
    return (
        "no model ran while they were moved to the GPU: they are data for passes to come",
        "keep them on the CPU until they are used; where a loop moves them ahead on purpose, 2 to"
        " 4 are enough: look at its condition",
    )


def _stores(scene: Scene) -> Iterator[_Store]:
    """Yields what holds many entries: one list or dict, or several of one object."""
    by_owner: defaultdict[str, list[int]] = defaultdict(list)
    by_store: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    by_line: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    names = scene.view.names
    rows = scene.program_rows
    in_checkpoint = scene.trace.stacks.within(_CHECKPOINT, scene.device.allocations.stack[rows])
    for row, is_in_checkpoint in zip(rows.tolist(), in_checkpoint.tolist(), strict=True):
        entry = _ENTRY.match(names.name(row))
        if entry is None or (is_in_checkpoint and entry["store"].startswith(_OF_CHECKPOINTS)):
            continue
        if entry["store"] in _NOBODYS:
            by_line[int(scene.view.phases.frame[row]), entry["store"]].append(row)
        elif not _OTHERS_TELL.search(entry["store"]):
            # One nameless dict is not another, but by the line of its entries.
            line = (
                int(scene.view.phases.frame[row]) if entry["store"] in _NOBODYS_DICTS else _NO_LINE
            )
            by_store[entry["store"], line].append(row)
    for (store, _), store_rows in by_store.items():
        if len(store_rows) >= _FEWEST_ENTRIES:
            owner, _, attribute = store.rpartition(".")
            if owner and attribute:
                by_owner[owner] += store_rows
            yield _store(scene, store, store_rows)
    for owner, owner_rows in by_owner.items():
        yield _store(scene, owner, owner_rows)
    yield from _lists_by_line(scene, by_line)


def _lists_by_line(scene: Scene, by_line: dict[tuple[int, str], list[int]]) -> Iterator[_Store]:
    """Yields the lists in variables that some lines fill, each once a pass, as one store."""
    begins, births = _turn_begins(scene), scene.device.allocations.born
    filling = {
        frame: line_rows
        for (frame, _), line_rows in by_line.items()
        if frame >= 0
        and len(line_rows) >= _FEWEST_OF_LINE
        and turns_with(begins, births[line_rows]) == len(line_rows)
    }
    places = list(filter(None, map(scene.view.place, filling)))
    if places:
        lines = " and ".join(f"{base_name(place.file)}:{place.line}" for place in places[:2])
        name = agreeing(len(places), "a list", "lists")
        yield _store(scene, name, [*chain.from_iterable(filling.values())], filled_by=lines)


def _store(scene: Scene, name: str, rows: list[int], *, filled_by: str = "") -> _Store:
    every = np.array(sorted(set(rows)), np.int64)
    if len(every) >= MANY_NAMED:
        every = with_unnamed_entries(scene, every)
    size_bytes = scene.bytes_of(every)
    return _Store(name, every, size_bytes, filled_by)


def _turn_begins(scene: Scene) -> NDArray[np.int64]:
    """The events at which the model is called; where the program has none, those of its steps."""
    return scene.pass_begins if scene.view.modules.marked.any() else scene.view.steps.starts


def _are_outputs(scene: Scene, store: _Store) -> bool:
    """Whether they are what as many passes since the last backward pass left, without a graph: these
    keep hardly anything else. (Where there is no model, a backward pass is a derivative of its turn.)
    """
    view, allocations, rows = scene.view, scene.device.allocations, store.rows
    ends = view.phases.ends_before(scene.advice_event)
    born = allocations.born[rows]
    if view.modules.marked.any() and len(ends) and int(born.min()) < int(ends[-1]):
        return False
    is_of_passes = bool(store.filled_by) or view.modules.marked[rows].any()
    is_of_loop = not view.modules.marked.any() and view.training != Training.SEEN
    turns = turns_with(_turn_begins(scene), born)
    is_between = turns >= max(_FEWEST_BETWEEN_PASSES, _MOSTLY * len(rows))
    is_of_many = is_between or (is_of_loop and turns >= _FEWEST_OF_LOOP)
    if turns < _FEWEST_OF_LINE or not (is_of_passes or is_of_many):
        return False
    return _keeps_little_beside(scene, rows)


def _is_of_ended_evaluations(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether models left several results at a time there without gradients, and training went on between: not
    what each update uses, as a rollout and a replay buffer. What was computed outside of a model has to wait
    longer to be that.
    """
    modules, phases = scene.view.modules, scene.view.phases
    of_model = modules.marked[rows] & modules.without_grad[rows]
    of_evaluation = of_model | (phases.phase[rows] == Phase.EVALUATION)
    return _are_of_ended(scene, rows[of_model], _FEWEST_BETWEEN) or _are_of_ended(
        scene, rows[of_evaluation], _FEWEST_BETWEEN_OTHERS
    )


def _are_of_ended(scene: Scene, results: NDArray[np.int64], fewest_between: int) -> bool:
    """Whether several came at a time, with so many backward passes between."""
    if not len(results) or not len(scene.view.phases.span_start):
        return False
    passes_before = scene.view.phases.passes_before(
        scene.device.allocations.born[results], scene.advice_event
    )
    evaluations, entries = np.unique(passes_before, return_counts=True)
    if len(entries) < 2 or int(entries[:-1].min()) < _FEWEST_RESULTS:
        return False
    return int(np.diff(evaluations).min()) >= fewest_between


def _is_moved_data(scene: Scene, store: _Store) -> bool:
    """Whether the failed line moves tensors to the GPU into the store, nearly all is there, and no model
    ran since the first of them. What is made there, such as a cache of keys, may have to be.
    """
    born = scene.device.allocations.born
    calls = born[scene.view.modules.marked]
    if (calls > born[store.rows].min()).any():
        return False
    place = scene.view.place_of_stack(scene.ending_request.stack)
    is_all = store.size_bytes >= _MOSTLY * scene.advice_heap.requested_bytes
    is_filled = place == scene.view.place_of_block(int(store.rows[0]))
    return is_all and is_filled and scene.moves_data(place)


def _keeps_little_beside(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether the passes that made these keep hardly anything else, as they would with a graph."""
    allocations, alive = scene.device.allocations, scene.advice_rows
    marked = scene.view.modules.marked
    born = allocations.born[rows]
    is_beside = (allocations.born[alive] > born.min()) & (allocations.born[alive] < born.max())
    is_of_model = marked[alive] if marked.any() else True
    beside = np.setdiff1d(alive[is_beside & is_of_model], rows)
    kept_bytes = scene.bytes_of(rows)
    return scene.bytes_of(beside) <= _NOTHING_ELSE * kept_bytes


def _is_written_once(scene: Scene, store: _Store) -> bool:
    """Whether a copy of the weights was made before training began, and not to be averaged."""
    starts = scene.view.phases.span_start
    made_at = int(scene.device.allocations.born[store.rows].max())
    return (not len(starts) or made_at < int(starts[0])) and not _AVERAGE.search(store.name)


def _is_copy_of_weights(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether the store's own keys are names of parameters."""
    return _are_weights(scene, rows, _ENTRY)


def _are_gradients_of_passes(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether each parameter's key leads to several gradients, by the text of the line that made them."""
    place = scene.view.place_of_block(int(rows[-1]))
    if not _OF_GRADIENT.search(scene.source_of(place)):
        return False
    named = rows[scene.view.names.named[rows]]
    entries = map(_ENTRY.match, map(scene.view.names.name, named.tolist()))
    keys = {entry["key"] for entry in entries if entry is not None}
    return len(named) >= _FEWEST_OF_KEY * len(keys) and _is_copy_of_weights(scene, named)


def _is_of_several_steps(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether copies of the weights came from several steps: state that trials or epochs left."""
    is_of_several = len(np.unique(scene.view.step[rows])) >= _FEWEST_STEPS
    return is_of_several and _are_weights(scene, rows, LAST_KEY)


def _are_weights(scene: Scene, rows: NDArray[np.int64], keyed: re.Pattern[str]) -> bool:
    """Whether most of some tensors have the name of a parameter as their key, and are as large as that."""
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    ends = _ends_of_parameters(scene)
    entries = ((keyed.search(names.name(row)), int(sizes[row])) for row in rows.tolist())
    known = sum(
        entry is not None and (entry["key"].strip("'\""), size) in ends for entry, size in entries
    )
    return known >= _MOSTLY * len(rows)


def _ends_of_parameters(scene: Scene) -> set[tuple[str, int]]:
    """The names of all parameters, whole and without their first parts, each with its size."""
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    parameters = {
        (names.name(row), int(sizes[row])) for row in names.of_kind(TensorKind.PARAMETER).tolist()
    }
    return {(name[start:], size) for name, size in parameters for start in _begins_of_parts(name)}


def _are_slices(names: Names, rows: NDArray[np.int64]) -> bool:
    """Whether most are kept by a slice that looks at less than half of them."""
    slices = sum(SLICE in names.name(row) for row in rows.tolist())
    return slices >= _MOSTLY * len(rows)


def _are_of_several(names: Names, rows: NDArray[np.int64]) -> bool:
    """Whether several lists have one name: the first entry of each is called alike."""
    return len({names.name(row) for row in rows.tolist()}) < len(rows)


def _objects_with_hooks(scene: Scene, store: _Store) -> int:
    """How many objects have a store of this name that is filled for one and the same module, by functions that it
    calls beside its own; 0 of others.
    """
    names, modules, rows = scene.view.names, scene.view.modules, store.rows.tolist()
    if "." not in store.name:
        return 0
    by_hook = [_is_made_in_hook(scene, row) for row in rows]
    if sum(by_hook) < _MOSTLY * len(by_hook):
        return 0
    return max(Counter((names.name(row), int(modules.module[row])) for row in rows).values())


def _is_made_in_hook(scene: Scene, row: int) -> bool:
    """Whether a module called the function that made something, and that is not named forward."""
    place = scene.view.place_of_block(row)
    frames = scene.trace.stacks.of(int(scene.device.allocations.stack[row]))
    return any(
        place is not None
        and (inner.file, inner.line) == (place.file, place.line)
        and inner.function != "forward"
        and _MODULE.search(outer.file) is not None
        for inner, outer in pairwise(frames)
    )


def _begins_of_parts(name: str) -> list[int]:
    """Where a dotted name and each shorter one at its end begin."""
    return [0, *(place + 1 for place, letter in enumerate(name) if letter == ".")]


def _is_metrics(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether metrics of torchmetrics asked for half of them: others they are handed."""
    is_metric = scene.trace.stacks.within(_METRIC, scene.device.allocations.stack[rows])
    return bool(2 * is_metric.sum() >= len(rows))
