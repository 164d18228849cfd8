"""One search of the heap, and the report on everything that grew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from vramlens.capture.process.undisturbed import undisturbed
from vramlens.capture.torch_api import connect
from vramlens.ground.program_errors import let_through
from vramlens.leak.leak import is_too_small, least_bytes_per_step
from vramlens.live.counters.gpu_memory import find_gpu
from vramlens.live.counters.host_allocator import allocated_bytes
from vramlens.live.counters.step_counters import CounterSeries, StepCounters
from vramlens.live.growth.accounting import (
    HostHeap,
    gone_by_now,
    gone_growth,
    grew_lately,
    growth_after_steps,
    tensors_by_storage,
    unexplained_growth,
)
from vramlens.live.growth.backlogs import (
    with_backlogs,
    with_complete,
    with_cut_graphs,
    with_rising,
)
from vramlens.live.growth.births import Births
from vramlens.live.growth.lagging_tees import parents_by_lagging_tee
from vramlens.live.growth.line_observer import Observer
from vramlens.live.growth.pace import FEWEST, WARM_UP
from vramlens.live.growth.piles import Item, Pile, live_items, piles
from vramlens.live.growth.remade_tensors import remade_larger
from vramlens.live.growth.shape_kernels import kernels_note
from vramlens.live.growth.stores import (
    Parents,
    parents_beside_variables,
    parents_by_store,
    parents_with_all_parts,
)
from vramlens.live.growth.unseen_births import with_unseen
from vramlens.live.heap.search import Search
from vramlens.live.heap.search_time import LONG, SearchTime
from vramlens.live.heap.tensors import Storage, TorchObjects
from vramlens.live.heap.unnamed_holders import search_briefly_on, search_loose, unreached_tensors
from vramlens.live.holder.keeper import Statements
from vramlens.live.leaks.allocating_line import HeapScene
from vramlens.live.leaks.entries_in_use import with_entries_in_use
from vramlens.live.leaks.leak_report import Gone, LeakReport, Unexplained
from vramlens.live.leaks.merged_leaks import KeptLeak, merged
from vramlens.live.leaks.parameter_state import with_parameter_state
from vramlens.live.leaks.pile_leak import pile_leak
from vramlens.live.leaks.replaced_entries import with_replaced
from vramlens.live.leaks.shared_memory import handed_over_leak
from vramlens.live.leaks.uncounted import counted_leaks
from vramlens.live.leaks.unreached import unreached_leaks

_MOST_DOUBTFUL = 8
"""Largest of those that are late or have stopped: each costs a chain and its source, and a report shows
ten of them at most.
"""

OwnedStorage = tuple[Storage, int, int | None]
"""A storage, the index of the leak that owns it (-1: none), the step that it was born in (0:
before; None: unknown).
"""


class HeapLook:
    """One search and what follows from it; everything it held is let go at the end."""

    def __init__(
        self,
        torch: TorchObjects,
        births: Births,
        observer: Observer | None,
        counters: StepCounters | None,
        *,
        allowed: SearchTime = LONG,
        is_brief: bool = False,
        is_over: bool = False,
    ) -> None:
        """Prepares.

        Args:
            allowed: the time that the search may take.
            is_brief: whether only what the user's own code reaches is searched, and nothing is
                said of what lies elsewhere: some hundredths of the time.
            is_over: whether no step is in the making: then what came after the last one is growth.
        """
        self._torch, self._births = torch, births
        self._observer, self._counters = observer, counters
        self._is_brief, self._is_over = is_brief, is_over
        series = CounterSeries() if counters is None else counters.host
        allocator = connect()
        history_events = allocator.history_events() if allocator is not None else 0
        self._host = HostHeap(
            series=series,
            now=allocated_bytes(),
            step=births.steps,
            history_events=history_events,
            sums=births.sums,
        )
        births.look_now()
        self._search = Search(torch, allowed, is_brief=is_brief)
        self._failures: list[str] = []
        traced_lines = observer.lines if observer is not None and observer.steps else None
        traced_steps = 0 if observer is None else len(observer.steps)
        self._statements = Statements(self._search, traced_lines, traced_steps)

    def report(self) -> tuple[LeakReport, list[OwnedStorage]]:
        """The report, and who owns each storage."""
        # A collection meanwhile would take what the search makes for the program's.
        with undisturbed(), self._torch.torch._C.DisableTorchFunction():
            try:
                return self._report()
            finally:
                self._search.close()
                self._births.pass_over()

    def _report(self) -> tuple[LeakReport, list[OwnedStorage]]:
        search, births = self._search, self._births
        search.run(tiers=(0,) if self._is_brief else (0, 1))
        has_unreached = self._search_unnamed()
        self._host = replace(self._host, tensors=tensors_by_storage(search))
        positions = self._positions_of_growth()
        parents = parents_by_lagging_tee(search, search.parents(positions))
        items = live_items(search, births, parents)
        scene, all_piles = self._piles(parents, items)
        kept_leaks: list[KeptLeak] = [
            (pile_leak(scene, pile), {item.storage for item in pile.items}) for pile in all_piles
        ]
        if has_unreached:
            kept_leaks += unreached_leaks(search, births, self._statements, self._observer)
        try:
            kept_leaks += self._counted(kept_leaks)
        except Exception as error:  # a counter that says something unheard of: the rest stands
            let_through(error)
            self._failures.append(f"the counters could not be read ({type(error).__name__})")
        least_bytes = least_bytes_per_step(None, 0, births.steps)
        leaks = [
            (replace(leak, is_small=is_too_small(leak, least_bytes, search.live_bytes)), storages)
            for leak, storages in merged(kept_leaks)
        ]
        leaks.sort(key=lambda pair: pair[0].is_small)
        unexplained = self._unexplained(items, kept_leaks, all_piles)
        kernels = kernels_note(self._torch.torch, unexplained, births.sizes, self._host.series)
        notes = [*search.skipped, *self._failures, *filter(None, [kernels])]
        gone = self._gone(items, unexplained)
        is_late = gone is not None and grew_lately(gone, births.steps)
        report = LeakReport(
            steps=births.steps,
            leaks=tuple(leak for leak, _ in leaks),
            notes=tuple(notes),
            headroom_bytes=self._headroom(),
            seconds=search.seconds,
            objects=len(search.order),
            live_bytes=search.live_bytes,
            grown_bytes=_grown_bytes(items),
            complete=search.complete,
            missing_steps=max(WARM_UP + FEWEST + 1 - births.steps, 0),
            gone=gone if is_late else None,
            gone_early=None if is_late else gone,
            unexplained=unexplained if kernels is None else None,
        )
        return report, _owned_storages(search, items, leaks)

    def _search_unnamed(self) -> bool:
        """Goes on at what no name leads to. Whether tensors may be left that nothing reaches."""
        if self._is_brief:
            search_briefly_on(self._search, self._births)
            return False
        has_unreached = unreached_tensors(self._search, self._births) >= FEWEST
        if has_unreached and not self._search.has_cut_graphs:
            search_loose(self._search)
        return has_unreached

    def _piles(self, parents: Parents, items: Sequence[Item]) -> tuple[HeapScene, list[Pile]]:
        """Everything that may be a leak: piles, tensors made anew, the largest of the doubtful."""
        search, births = self._search, self._births
        growing, doubtful = piles(search, items, parents, births.steps, births.looks)
        for stores_in in (
            parents_by_store,
            parents_with_all_parts,
            parents_beside_variables,
        ):
            by_store = stores_in(search, [*growing, *doubtful], parents)
            if by_store is not None:
                parents = by_store
                growing, doubtful = piles(search, items, parents, births.steps, births.looks)
        remade = remade_larger(items, births)
        growing = with_unseen(growing, items, parents, births.steps)
        growing = with_complete(search, growing, births.steps)
        tensors = self._host.tensors
        handed_out = {} if self._counters is None else self._counters.handed_out
        often_read = {} if self._counters is None else self._counters.often_read
        growing = with_rising(growing, births, handed_out, often_read, tensors)
        growing = with_replaced(search, growing, parents, handed_out, tensors)
        growing = with_entries_in_use(search, growing)
        doubtful = with_backlogs(with_complete(search, doubtful, births.steps), births)
        doubtful = with_cut_graphs(search, doubtful, often_read, tensors)
        doubtful = sorted(doubtful, key=lambda pile: -pile.bytes)[:_MOST_DOUBTFUL]
        scene = HeapScene(search, self._statements, self._observer, parents)
        lasting = with_parameter_state(search, [*growing, *doubtful], births, parents)
        return scene, [*lasting, *remade]

    def _unexplained(
        self, items: Sequence[Item], kept_leaks: Sequence[KeptLeak], all_piles: Iterable[Pile]
    ) -> Unexplained | None:
        """Growth that no leak and no look-alike explains."""
        if self._is_brief:
            return None
        judged = chain.from_iterable(storages for _, storages in kept_leaks)
        looks = self._births.looks
        has_cut_pile = any(pile.is_cut for pile in all_piles)  # what was not reached is its rest
        host = None if has_cut_pile or not self._search.complete else self._host
        growth = unexplained_growth(self._search.storages, items, judged, host, looks)
        if growth is None and self._is_over:
            return growth_after_steps(items, self._births.steps, looks, self._births.sums)
        return growth

    def _gone(self, items: Sequence[Item], unexplained: Unexplained | None) -> Gone | None:
        """Growth that was seen, and that is gone."""
        gone = gone_growth(items, self._births)
        if gone is not None or self._is_brief or unexplained is not None:
            return gone
        return gone_by_now(self._search, items, self._host, self._births.steps)

    def _counted(self, kept_leaks: Sequence[KeptLeak]) -> list[KeptLeak]:
        """Leaks that only counters show."""
        if self._counters is None or self._is_brief:
            return []
        search, births = self._search, self._births
        explained = set(search.storages)
        for _, storages in kept_leaks:
            explained.update(storage for storage in storages if storage)
        explained_bytes: Counter[str] = Counter()
        for storage in explained:
            explained_bytes[storage.device] += storage.size_bytes
        leaks = counted_leaks(
            self._counters,
            search,
            self._statements,
            explained_bytes,
            [leak for leak, _ in kept_leaks],
        )
        sent = handed_over_leak(
            self._counters, search, self._statements, births.steps, births.looks
        )
        if sent is not None:
            leaks = [*leaks, sent]
        return [(leak, set()) for leak in leaks]

    def _positions_of_growth(self) -> list[int]:
        """Positions of what may have grown: storages, and autograd nodes."""
        search = self._search
        return [*search.storages.values(), *search.graph_nodes()]

    def _headroom(self) -> int | None:
        """Free memory of the GPU, PyTorch's cache included; None where no GPU is in use."""
        gpus = find_gpu(self._torch.torch)
        return None if gpus is None else gpus.headroom()


def _grown_bytes(items: Iterable[Item]) -> int:
    """Bytes of what was born after warm-up, or nobody knows when."""
    return sum(item.size_bytes for item in items if item.born is None or item.born > WARM_UP)


def _owned_storages(
    search: Search, items: Sequence[Item], leaks: Sequence[KeptLeak]
) -> list[OwnedStorage]:
    """Every live storage with the leak that owns it and the step that it was born in."""
    leak_index: dict[Storage, int] = {}
    for index, (_, storages) in enumerate(leaks):
        leak_index.update((storage, index) for storage in storages if storage)
    born = {item.storage: item.born for item in items if item.storage is not None}
    every = dict.fromkeys((*search.storages, *leak_index))
    return [(storage, leak_index.get(storage, -1), born.get(storage)) for storage in every]
