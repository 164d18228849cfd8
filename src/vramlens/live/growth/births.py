"""In which step each live storage was born: cheap looks at the youngest objects at each step's end.

Python's collector keeps new objects apart from old ones. At the end of a step the young ones are a
few thousand, and the tensors among them were made in this step. Where a step made so much that some
have grown old already, or looking would cost more than its share of the time, the birth is known
later, as a range, or not at all. Nothing is kept but addresses and sizes: no reference, not even a
weak one.

What only an autograd graph holds has no Python object; its node's sequence number says the step.
"""

from __future__ import annotations

import gc
import weakref
from array import array
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from time import thread_time
from typing import Any

from vramlens.capture.process.late_errors import raise_after_callback
from vramlens.capture.process.tracked_objects import tracked_of_types
from vramlens.capture.process.undisturbed import (
    does_program_collect,
    no_other_thread,
    undisturbed,
)
from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import WARM_UP
from vramlens.live.growth.ration import FIRST_STEPS, Ration
from vramlens.live.growth.youngest import Youngest
from vramlens.live.heap.tensors import Storage, TorchObjects

_FREE_SECONDS, _SHARE = 0.02, 0.004  # for looking at what is young
_SHARE_AT_FIRST = 0.02
_KEPT_FOR_ENDS = 0.01  # of the first steps: an import makes the collector come a thousand times
_SECONDS_AN_OBJECT = 4e-8
_MOST_SIZES = 64
_MOST_STEPS_OF_SIZES = 2000
_MOST_BIRTHS = 1_000_000
_REFRESH_EVERY = 32
_FREE_SUM_SECONDS, _SUM_SHARE = 0.01, 0.0005  # for summing what is alive
_FREE_SUMS = 10  # of young objects, however slow the machine: about a millisecond each
_OLDEST = 2  # the collector's generation whose collection is of all
_FIRST_SUM = 5  # steps: growth and warm-up cannot be told apart before
BEFORE = 0


@dataclass(slots=True)
class Collections:
    """Runs of the collector over all generations, after warm-up.

    Attributes:
        count: how many.
        last: the step of the latest; 0 without one.
        longest_pause: steps between two of them, or before the first, at most.
        freed: objects that runs over the younger generations freed.
    """

    count: int = 0
    last: int = 0
    longest_pause: int = 0
    freed: int = 0

    def note(self, step: int) -> None:
        """A collection begins in a step. Those of warm-up come with imports."""
        if step > WARM_UP:
            self.count += 1
            self.longest_pause = max(self.longest_pause, step - self.last)
            self.last = step


class Births:
    """The births of storages, by step from 1; 0 is before the watch began.

    Attributes:
        steps: steps that have ended.
        looks: at which steps' ends there was time to look.
        sizes: of each step that was looked at, of the latest of them, the sizes of the largest
            storages that it left alive.
        visited: how many objects were looked through, tensors in them and not.
        latest_sum: the latest step at whose end bytes alive were summed, and they, by step of
            birth.
        sums: of each sum, its step and the bytes.
        is_collecting: whether Python's collector ran by itself when a report was asked for.
        collections: those of all generations, which free every circle that waits.
    """

    def __init__(self, torch: TorchObjects, earlier: Births | None = None) -> None:
        """Notes what is there already.

        Args:
            earlier: births by another unit: what these have all seen is not looked for again.
        """
        self._torch = torch
        self.steps = 0
        self._looked_at = array("q")  # eight bytes a look, in programs that run for weeks
        self._blind_step = 0
        self.sizes: dict[int, list[int]] = {}
        self.visited = 0
        self.latest_sum: tuple[int, dict[int, int]] = (0, {})
        self.sums: list[tuple[int, int]] = []
        self.is_collecting = does_program_collect()
        self.collections = Collections()
        self._born: dict[tuple[int, int], int] = {}
        self._sequence = array("q")
        self._youngest = Youngest(torch)
        self._whole_seconds = 0.0  # that looking at everything takes
        self._older_sizes: Counter[int] = Counter()  # of what was there; empty where not looked for
        if earlier is not None and earlier.have_seen_all:
            earlier.look_now()
            self._born = dict.fromkeys(earlier._born, BEFORE)
            self._whole_seconds = earlier._whole_seconds
            self._older_sizes = earlier._older_sizes
        else:
            self._note_what_is_there()
        self._next_sum = _FIRST_SUM
        self._collection_callback = _follow_collections(self)
        self._ration = Ration(_FREE_SECONDS, _SHARE, _SHARE_AT_FIRST)
        self._sum_ration = Ration(_FREE_SUM_SECONDS, _SUM_SHARE)
        self._mark()

    def _note_what_is_there(self) -> None:
        began = thread_time()
        with no_other_thread():
            self._note(tracked_of_types(self._torch.types_with_storage()), BEFORE)
        self._older_sizes.update(size for _, size in self._born)
        self._whole_seconds = thread_time() - began

    def older_gone(self) -> Counter[int]:
        """How many storages of each size were there when the watch began and are not alive now."""
        if not self._older_sizes:
            return Counter()
        alive = self._places_alive(everywhere=True)
        # What the first step found young may have been there before it.
        older = (place for place in alive if self._born.get(place, BEFORE) <= WARM_UP)
        return self._older_sizes - Counter(size for _, size in older)

    @property
    def have_seen_all(self) -> bool:
        """Whether there was time to look at each step's end, and before each collection."""
        return not self._blind_step and len(self._looked_at) == self.steps

    def close(self) -> None:
        """Hears of collections no longer."""
        _forget(self._collection_callback)

    def step_ended(self) -> None:
        """Notes what the step that ends now leaves behind."""
        self.steps += 1
        self._mark()
        if self.steps == WARM_UP == self._blind_step:
            self._note_unseen(self.steps)
        if self._look_if_there_is_time(self.steps):
            self._looked_at.append(self.steps)
            if len(self._looked_at) % _REFRESH_EVERY == 0:
                self._torch.refresh()
            self._sum_alive()

    def collection_begins(self, generation: int) -> None:
        """Notes what is young before a collection makes it old and mixes it with what is older."""
        step = self.steps + 1
        if generation == _OLDEST:
            self.collections.note(step)
        kept_seconds = _KEPT_FOR_ENDS if step < FIRST_STEPS else 0.0
        if not self._look_if_there_is_time(step, kept_seconds):
            self._blind_step = step

    def collection_ends(self, generation: int, freed: int) -> None:
        """Counts what the younger generations' runs free, after warm-up."""
        if generation != _OLDEST and self.steps >= WARM_UP:
            self.collections.freed += freed

    @property
    def rations(self) -> tuple[Ration, ...]:
        """What looking and summing may take."""
        return self._ration, self._sum_ration

    @property
    def looks(self) -> Looks:
        """The looks so far."""
        return Looks(self._looked_at, self._blind_step)

    def look_now(self) -> None:
        """Notes what is young in the step that has not ended, and whether the program lets the
        collector run.
        """
        self.is_collecting = does_program_collect()
        self._look_at_new(self.steps + 1)

    def young_tensors(self) -> list[Any]:
        """Tensors that the collector has come by twice at most."""
        return self._youngest.all()

    def made_since_look(self) -> set[int]:
        """The identities of tensors made since the last look, by threads that run beside a search:
        their addresses may have been others' before.
        """
        return set(map(id, self._youngest.made_since()))

    def pass_over(self) -> None:
        """Has the next look begin here: what a search makes is not the program's, and is as much
        as some steps make.
        """
        self._youngest.mark()

    def born(self, storage: Storage, tensor: Any, saved_by: Any = None) -> int | None:
        """The step in which a storage was born; None where it cannot be told.

        Args:
            tensor: what looks at it.
            saved_by: the autograd node that keeps it, if nothing else does.
        """
        recorded_step = self._born.get((storage.address, storage.size_bytes))
        if saved_by is not None:
            # Its address may have been another's before; only what was there before the watch is
            # surely older.
            node_step = self.step_of(saved_by)
            return recorded_step if recorded_step == BEFORE or node_step is None else node_step
        node_step = None
        if self._torch.is_tensor(tensor) and not self._torch.is_view(tensor):
            node = self._torch.grad_fn(tensor)
            node_step = None if node is None else self.step_of(node)
        return recorded_step if node_step is None else node_step

    def step_of(self, node: Any) -> int | None:
        """The step in which an autograd node was made; None where it cannot be told."""
        number = self._torch.sequence_of(node)
        if number is None or not self._sequence:
            return None
        return bisect_left(self._sequence, number + 1)

    def _look_if_there_is_time(self, step: int, kept_seconds: float = 0.0) -> bool:
        """Looks, unless that would take more than its share of the time; on a busy machine
        others' time is not ours.
        """
        if self._ration.left < kept_seconds + gc.get_count()[0] * _SECONDS_AN_OBJECT:
            return False
        began = thread_time()
        self._look_at_new(step)
        self._ration.spent += thread_time() - began
        return True

    def _sum_alive(self) -> None:
        """Sums what is alive by its birth, rarely: what grew is known even if it is gone when
        somebody asks.
        """
        if self.steps < self._next_sum:
            return
        self._next_sum = _sum_after(self.steps)
        if self._sum_ration.left > 0 or len(self.sums) < _FREE_SUMS:
            bytes_by_step = self.bytes_alive()
            self.latest_sum = self.steps, bytes_by_step
            self.sums.append((self.steps, sum(bytes_by_step.values())))

    def bytes_alive(self) -> dict[int, int]:
        """Bytes that tensors of Python's keep alive, by the step of their birth."""
        began, is_whole = thread_time(), self._whole_seconds < self._sum_ration.left
        bytes_by_step: dict[int, int] = {}
        for place in self._places_alive(everywhere=is_whole):
            born = self._born.get(place, BEFORE)
            if born > BEFORE:
                bytes_by_step[born] = bytes_by_step.get(born, 0) + place[1]
        self._sum_ration.spent += thread_time() - began
        return bytes_by_step

    def _places_alive(self, *, everywhere: bool) -> set[tuple[int, int]]:
        """Addresses and sizes of storages that tensors look at: all, or those of what was made
        lately, which in a short program is all since the watch began.
        """
        types = self._torch.types_with_storage() if everywhere else {}
        tensors = tracked_of_types(types) if everywhere else self._youngest.all()
        with self._torch.torch._C.DisableTorchFunction():
            return set(filter(None, map(self._torch.place_of, tensors)))

    @property
    def is_summed(self) -> bool:
        """Whether the latest sum is of one of the last steps."""
        return self.latest_sum[0] > 0 and self.steps < _sum_after(self.latest_sum[0])

    def _look_at_new(self, step: int) -> None:
        with undisturbed():  # a collection in the middle would mix the generations
            self.visited += gc.get_count()[0]
            self._note(self._youngest.made_since(), step)
            self.pass_over()

    def _mark(self) -> None:
        number = self._torch.sequence_now()
        if number is not None:
            last = self._sequence[-1] if self._sequence else 0
            self._sequence.append(max(number, last))  # another thread's numbers are its own

    def _note_unseen(self, step: int) -> None:
        """Notes what is alive and was never seen as born in a step: once, after a first step in
        which imports took the time for looking.
        """
        place_of = self._torch.place_of
        with no_other_thread(), self._torch.torch._C.DisableTorchFunction():
            tensors = tracked_of_types(self._torch.types_with_storage())
            self._note([tensor for tensor in tensors if place_of(tensor) not in self._born], step)

    def _note(self, tensors: list[Any], step: int) -> None:
        """Notes the storages of tensors as born in a step."""
        sizes = set(self.sizes.get(step, ()))
        born = self._born
        if len(born) > _MOST_BIRTHS:
            born.clear()
        with self._torch.torch._C.DisableTorchFunction():
            for tensor in tensors:
                place = self._torch.place_of(tensor)
                if place is None:
                    continue
                # A view or a detached tensor may be a new look at what was there before the watch.
                # What was born since has the step of its newest look: its address may have been
                # another's before.
                if born.get(place) != BEFORE or not self._torch.looks_again(tensor):
                    born[place] = step
                sizes.add(place[1])
        self.sizes[step] = sorted(sizes, reverse=True)[:_MOST_SIZES]
        if len(self.sizes) > _MOST_STEPS_OF_SIZES:
            del self.sizes[next(iter(self.sizes))]


def _follow_collections(births: Births) -> Any:
    """Has births hear of collections of the older generations, for as long as they live; gives the
    callback.
    """
    listening = weakref.ref(births, lambda _: _forget(tell))

    def tell(phase: str, facts: dict[str, int]) -> None:
        alive = listening()
        try:
            if alive is not None and phase == "start":
                alive.collection_begins(facts["generation"])
            elif alive is not None:
                alive.collection_ends(facts["generation"], facts["collected"])
        except BaseException as error:  # in the middle of anything that the program does
            raise_after_callback(error)

    gc.callbacks.append(tell)
    return tell


def _sum_after(step: int) -> int:
    """The step at which bytes are summed next."""
    return step + 1 + step // 4


def _forget(callback: Any) -> None:
    with suppress(ValueError):
        gc.callbacks.remove(callback)
