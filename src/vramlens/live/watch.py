"""Leak watching: what each step leaves behind, and who holds it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from types import CodeType, FrameType
from typing import Any

from vramlens.capture.process.undisturbed import undisturbed
from vramlens.ground.verdict import Verdict
from vramlens.live.growth.accounting import unexplained_growth
from vramlens.live.growth.births import BEFORE, Births
from vramlens.live.growth.line_observer import Observer, Stack, voted_line
from vramlens.live.growth.piles import (
    FEWEST,
    WARM_UP,
    Item,
    Pile,
    gone_growth,
    live_items,
    piles,
    remade_larger,
)
from vramlens.live.growth.step_counters import Counters, Series
from vramlens.live.heap.objects import is_kind, is_own_file, is_users, namespace_of
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage, TorchObjects, device_of, loaded
from vramlens.live.heap.unnamed_holders import search_loose, unreached_tensors
from vramlens.live.holder.chain import Chain, chain_of
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.holder.keeper_position import (
    first_of_run,
    holder_of,
    index_of,
    is_result,
    is_shell,
)
from vramlens.live.holder.leak_class import WORTH_DETACHING, class_of, fix_of, statement_source
from vramlens.live.holder.lookalikes import NONE, distant_bound, gate
from vramlens.live.holder.owner import owner_of
from vramlens.live.holder.route import route_of
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.leaks.merged_leaks import merged
from vramlens.live.leaks.shared_memory import handed_over_leak
from vramlens.live.leaks.uncounted import counted_leaks
from vramlens.live.leaks.unreached import unreached_leaks
from vramlens.live.source.statement_scores import example_of
from vramlens.live.source.stored_values import MadeAt, made_at, only_waits
from vramlens.units import counted, format_size

_PINNED_SHARE = 8  # a view that looks at less than an eighth of its storage pins the rest
_MOST_DOUBTFUL = 8
_MOST_NODES = 1000  # that are asked for what they saved

OwnedStorage = tuple[Storage, int, int | None]
"""A storage, the index of the leak that owns it (-1: none), the step that it was born in (0:
before; None: unknown).
"""


class LeakWatch:
    """Watches what the steps of a program leave behind.

    Call ``step()`` at each step's end: it costs microseconds, now and then a fraction of a
    millisecond. ``report()`` searches everything that is alive once, and says what grew, who holds
    it, which statement keeps it, and what to change. CPU tensors and GPU tensors are the same to
    it.
    """

    def __init__(self) -> None:
        self._torch: TorchObjects | None = None
        self._births: Births | None = None
        self._observer: Observer | None = None
        self._counters: Counters | None = None
        self._steps = 0
        self._code: CodeType | None = None  # of what calls step()
        self._begin()

    def _begin(self) -> None:
        self._torch = loaded()
        if self._torch is not None:
            self._births = Births(self._torch)
            self._observer = Observer(self._torch)
            self._counters = Counters(self._torch.torch)

    @property
    def steps(self) -> int:
        """Steps that have ended since the watch began."""
        return self._steps

    def step(self, caller: FrameType | None = None) -> None:
        """Ends a step; ``caller`` is the frame that runs on, by default the one that calls this."""
        if self._observer is not None:
            self._observer.end()
        self._steps += 1
        if self._births is None:
            self._begin()
        if self._births is not None:
            self._births.step_ended()
        if self._counters is not None:
            with suppress(Exception):  # a counter that this version does not have
                self._counters.read(self._steps)
        caller = sys._getframe(1) if caller is None else caller
        self._code = caller.f_code
        if self._observer is not None:
            self._observer.begin(self._steps + 1, caller)

    def stop(self) -> None:
        """Ends what goes on between steps; the watch is of no use after it."""
        if self._observer is not None:
            self._observer.end(whole=False)

    def report(self) -> LeakReport:
        """What grew so far, and who holds it. Searches the heap: about a second for a million
        objects.
        """
        if self._torch is None or self._births is None:
            return LeakReport(
                self._steps,
                (),
                ("the program has not imported torch: there are no tensors to watch",),
            )
        if self._observer is not None:
            self._observer.end(whole=False)
        found = _Look(self._torch, self._births, self._observer, self._counters).report()[0]
        if found.gone is None or self._code is None or is_own_file(self._code.co_filename):
            return found
        return replace(found, gone=replace(found.gone, function=self._code.co_name))

    def owned(self) -> tuple[LeakReport, list[OwnedStorage]] | None:
        """The report, and for every live storage the index of the leak in it that owns it; None
        without torch.
        """
        if self._torch is None or self._births is None:
            return None
        if self._observer is not None:
            self._observer.end(whole=False)
        return _Look(self._torch, self._births, self._observer, self._counters).report()


class _Look:
    """One search and what follows from it; everything it held is let go at the end."""

    def __init__(
        self,
        torch: TorchObjects,
        births: Births,
        observer: Observer | None,
        counters: Counters | None,
    ) -> None:
        self._torch, self._births, self._observer, self._counters = (
            torch,
            births,
            observer,
            counters,
        )
        births.look_now()
        self._search = Search(torch)
        self._parents: dict[int, tuple[int, str]] = {}
        self._said: list[str] = []
        self._statements = Statements(
            self._search, observer.lines if observer is not None and observer.steps else None
        )

    def report(self) -> tuple[LeakReport, list[OwnedStorage]]:
        """The report, and who owns what."""
        # A collection meanwhile would take what the search makes for the program's.
        with undisturbed(), self._torch.torch._C.DisableTorchFunction():
            try:
                return self._report()
            finally:
                self._births.pass_over()

    def _report(self) -> tuple[LeakReport, list[OwnedStorage]]:
        search, births = self._search, self._births
        try:
            search.run()
            has_unreached = unreached_tensors(search, births) >= FEWEST
            if has_unreached:
                search_loose(search)
            parents = self._parents = search.parents(self._interesting())
            items = live_items(search, births, parents)
            found, doubtful = piles(search, items, parents, births.steps, births.known_until)
            remade = remade_larger(search, items, births)
            doubtful = sorted(doubtful, key=lambda pile: -pile.bytes)[:_MOST_DOUBTFUL]
            leaks = [
                (self._leak(pile, parents), {item.storage for item in pile.items})
                for pile in [*found, *remade, *doubtful]
            ]
            if has_unreached:
                leaks += unreached_leaks(search, births, self._statements, self._observer)
            try:
                leaks += self._counted(leaks)
            except Exception as error:  # a counter that says something unheard of: the rest stands
                self._said.append(f"the counters could not be read ({type(error).__name__})")
            found_leaks = merged(leaks)
            judged = [storage for _, kept in leaks for storage in kept]
            host = Series() if self._counters is None else self._counters.host
            report = LeakReport(
                steps=births.steps,
                leaks=tuple(leak for leak, _ in found_leaks),
                notes=(*search.skipped, *self._said),
                headroom_bytes=self._headroom(),
                seconds=search.seconds,
                objects=len(search.order),
                live_bytes=sum(storage.size_bytes for storage in search.storages),
                complete=search.complete,
                missing_steps=max(WARM_UP + FEWEST + 1 - births.steps, 0),
                gone=gone_growth(items, births),
                unexplained=unexplained_growth(search, items, judged, host, births.known_until),
            )
            owner = {
                storage: index
                for index, (_, kept) in enumerate(found_leaks)
                for storage in kept
                if storage
            }
            born = {item.storage: item.born for item in items if item.storage is not None}
            every = dict.fromkeys((*search.storages, *owner))
            return report, [
                (storage, owner.get(storage, -1), born.get(storage)) for storage in every
            ]
        finally:
            search.close()

    def _counted(
        self, leaks: Sequence[tuple[LiveLeak, set[Storage | None]]]
    ) -> list[tuple[LiveLeak, set[Storage | None]]]:
        """What only counters show."""
        if self._counters is None:
            return []
        search, births = self._search, self._births
        known: Counter[str] = Counter()
        for storage in {*search.storages, *(one for _, kept in leaks for one in kept if one)}:
            known[storage.device] += storage.size_bytes
        found = counted_leaks(
            self._counters, search, self._statements, known, [leak for leak, _ in leaks]
        )
        sent = handed_over_leak(
            self._counters, search, self._statements, births.steps, births.known_until
        )
        return [(leak, set()) for leak in ([*found, sent] if sent is not None else found)]

    def _interesting(self) -> list[int]:
        """Positions of what may have grown: storages from after the beginning, autograd nodes."""
        search = self._search
        found = list(search.storages.values())
        for low, high in search.graph_from:
            found += [
                place for place in range(low, high) if self._torch.is_node(search.order[place])
            ]
        return found

    def _headroom(self) -> int | None:
        """Free memory of the current GPU, PyTorch's cache included; None where no GPU is in use."""
        cuda = self._torch.torch.cuda
        try:
            if not cuda.is_initialized():
                return None
            free, _ = cuda.mem_get_info()
            return int(free) + int(cuda.memory_reserved()) - int(cuda.memory_allocated())
        except Exception:  # no such figure here
            return None

    def _leak(self, pile: Pile, parents: Mapping[int, tuple[int, str]]) -> LiveLeak:
        search, pace = self._search, pile.pace
        example = _example(pile)
        nodes = sum(1 for item in pile.items if item.storage is None)
        graph_bytes = sum(item.size_bytes for item in pile.items if search.in_graph(item.position))
        is_graph = (nodes > 0 and _is_repeated(pile)) or 2 * graph_bytes > pile.bytes > 0
        known = dict(parents)
        path = search.path(example.position, known)
        chain = chain_of(search, path, known)
        at, inner = (
            (0, chain.links[0].value) if pile.is_spread else index_of(search, chain, pile.position)
        )
        at = first_of_run(chain, at)
        value = (
            chain.links[at].value
            if at >= 0
            else (chain.root.value if chain.root is not None else None)
        )
        if at > 0 and is_shell(chain.links[at - 1].value):
            at, value = at - 1, chain.links[at - 1].value  # not its insides
        upto = Chain(chain.root, tuple(chain.links[: at + 1]))
        held = chain.links[at + 1].value if at + 1 < len(chain.links) else example_of(inner)
        made = self._observed(pile.items)
        below = [link.value for link in chain.links[at + 1 :]]
        keeper = self._statements.keeper(upto, held, is_graph=is_graph, made=made, below=below)
        code = (
            chain.root.code
            if pile.is_spread and chain.root is not None and chain.root.thread
            else None
        )
        if code is not None and is_users(code.co_filename):
            keeper = self._statements.registration(code) or keeper  # what began the threads
        kind = class_of(search, chain, at, keeper, self._statements, is_graph)
        source = statement_source(keeper)
        owner = owner_of(search, chain, at, keeper, source)
        if pile.is_spread and chain.root is not None and chain.root.code is not None:
            owner = replace(owner, name=f"{chain.root.code.co_name}.{owner.name}")
        if made is not None and (is_result(below) or only_waits(made.file, made.line)):
            made = (
                self._made_elsewhere(
                    keeper, is_key=[link.name for link in chain.links[at + 1 : at + 2]] == ["a key"]
                )
                or made
            )
        made = made or self._made(keeper, is_graph=is_graph)
        verdict, why = self._verdict(pile, value, keeper, is_graph, holder_of(chain, at, keeper))
        pins = self._pins(pile)
        device = device_of(item.storage for item in pile.items)
        number = self._torch.is_tensor(held) and self._torch.is_number(held)
        graph_share = graph_bytes / pile.bytes if pile.bytes else 1.0
        fix = fix_of(
            kind,
            keeper,
            owner,
            remade=pile.is_remade,
            pins=pins,
            device=device,
            is_number=number,
            graph_share=graph_share,
        )
        return LiveLeak(
            verdict=verdict,
            kind=kind,
            file=made.file,
            line=made.line,
            function=made.function,
            bytes_per_step=pace.bytes_per_step,
            bytes=pile.bytes,
            steps=pace.steps
            if pile.is_remade
            else len({item.born for item in pile.items if item.born}),
            first_step=pace.first,
            last_step=pace.last,
            storages=sum(1 for item in pile.items if item.storage is not None),
            nodes=nodes,
            owner=owner,
            why=why,
            fix="" if verdict == NONE else fix,
            device=device,
            route=route_of(upto),
            is_freed=kind == "graph" and self._is_freed(pile),
            fix_share=graph_share
            if kind == "graph" and not pins and graph_share >= WORTH_DETACHING
            else 1.0,
        )

    def _is_freed(self, pile: Pile) -> bool:
        """Whether backward passes have let go of all that a pile's autograd nodes saved."""
        nodes = [self._search.order[item.position] for item in pile.items if item.storage is None]
        return {self._torch.still_saves(node) for node in nodes[:_MOST_NODES]} - {None} == {False}

    def _verdict(
        self, pile: Pile, value: Any, keeper: Keeper | None, is_graph: bool, holder: object
    ) -> tuple[Verdict, tuple[str, ...]]:
        pace = pile.pace
        spread = (
            f"every one of {counted(pace.steps, 'step')}"
            if pace.filled >= 0.95
            else counted(pace.steps, "step")
        )
        why = [
            f"{spread} from {pace.first} to {pace.last} left something behind that is still alive"
        ]
        if pile.is_remade:
            why = [f"one tensor, made anew {pace.bytes_per_step:,} bytes larger in each step"]
        lowered = gate(
            self._statements,
            value,
            keeper,
            is_graph=is_graph,
            is_remade=pile.is_remade,
            holder=holder,
            kept_bytes=pile.bytes,
        )
        distant = distant_bound(value, keeper, holder, pile.bytes)
        if distant:
            why.append(distant)
        if not pace.is_steady:
            if lowered is not None and lowered[0] == NONE:
                return NONE, (lowered[1],)
            if pace.is_late:
                return Verdict.POSSIBLE, (
                    f"nothing from before step {pace.first} is kept: it is emptied now and then, or began there",
                )
            return NONE, (f"it has not grown since step {pace.last}",)
        if lowered is not None:
            return Verdict(lowered[0]), (*why, lowered[1])
        if not pile.is_remade and not pile.is_spread and not _is_uniform(self._search, pile, value):
            return Verdict.POSSIBLE, (
                *why,
                "but each time something else: state that is made as it is needed",
            )
        return (Verdict.PROVEN if pace.is_sure else Verdict.LIKELY), tuple(why)

    def _observed(self, items: Sequence[Item]) -> MadeAt | None:
        """The line that made what was born in one of the steps that were traced."""
        if self._observer is None:
            return None
        stacks: dict[int, list[tuple[Stack, int]]] = {}
        for item in items:
            stack = None
            if item.storage is not None:
                above = self._parents.get(item.position, (-1, ""))
                # Of what was not seen, what was seen at its address was something else.
                stack = self._observer.made(item.storage, item.born) if item.is_seen else None
                if (
                    stack is None
                    and above[0] >= 0
                    and self._torch.is_node(self._search.order[above[0]])
                ):
                    stack = self._made_by(self._search.order[above[0]])
            if stack:
                stacks.setdefault(item.born or 0, []).append((stack, item.size_bytes))
        if not stacks:
            for item in items:
                stack = (
                    self._made_by(self._search.order[item.position])
                    if item.storage is None
                    else None
                )
                if stack:
                    stacks.setdefault(item.born or 0, []).append((stack, 1))
        line = voted_line(stacks, self._observer.steps)
        return None if line is None else MadeAt(*line)

    def _made_elsewhere(self, keeper: Keeper | None, *, is_key: bool) -> MadeAt | None:
        """The line that makes it, from the source, where this thread was seen only to wait while
        another made it.
        """
        if keeper is None or keeper.store is None:
            return None
        store = replace(keeper.store, value=keeper.store.key) if is_key else keeper.store
        made = made_at(self._statements, store, is_graph=False)
        return None if made.line == keeper.line else made

    def _made_by(self, node: Any) -> Stack | None:
        number = self._torch.sequence_of(node)
        return (
            None if number is None or self._observer is None else self._observer.made_node(number)
        )

    def _made(self, keeper: Keeper | None, *, is_graph: bool) -> MadeAt:
        if keeper is None:
            return MadeAt("", 0, "")
        if keeper.store is None:
            return MadeAt(keeper.file, keeper.line, keeper.function)
        return made_at(self._statements, keeper.store, is_graph=is_graph)

    def _pins(self, pile: Pile) -> str:
        """The size of the storages, where only small views of them are kept."""
        small = 0
        sizes = []
        for item in pile.items:
            if item.storage is None or self._search.in_graph(item.position):
                continue
            viewed = self._torch.viewed_bytes(self._search.order[item.position])
            sizes.append(item.size_bytes)
            if (
                viewed is not None
                and viewed * _PINNED_SHARE < item.size_bytes
                and item.size_bytes > 1024
            ):
                small += 1
        return format_size(median(sizes)) if sizes and small * 2 > len(sizes) else ""


def _example(pile: Pile) -> Item:
    """One thing that is kept: the largest from the middle of the run."""
    born = sorted(
        {item.born for item in pile.items if item.born is not None and item.born > BEFORE}
    )
    middle = born[len(born) // 2]
    return max(
        (item for item in pile.items if item.born == middle), key=lambda item: item.size_bytes
    )


def _is_repeated(pile: Pile) -> bool:
    """Whether autograd nodes of several steps are kept."""
    return len({item.born for item in pile.items if item.storage is None}) >= FEWEST


def _is_uniform(search: Search, pile: Pile, value: Any) -> bool:
    """Whether each step added the same: namespaces also fill with different things, one after
    the other.
    """
    if search.torch.is_tensor(value):  # what its graph keeps
        return True
    if (
        value is None
        or is_kind(value, type)
        or (type(value) is dict and search.roots.get(pile.position) is not None)
    ):
        is_namespace = True
    else:
        is_container = is_kind(value, list, tuple, set, dict, frozenset) or is_shell(value)
        is_namespace = not is_container and namespace_of(value) is not None
    if not is_namespace:
        return True
    counts = Counter(item.born for item in pile.items if item.storage is not None)
    sums: Counter[int | None] = Counter()
    for item in pile.items:
        sums[item.born] += item.size_bytes
    same = Counter(sums.values()).most_common(1)[0][1]
    return len(counts) >= FEWEST + 1 and same * 4 >= 3 * len(sums)
