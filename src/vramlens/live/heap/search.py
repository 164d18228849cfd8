"""One forward search from the roots through everything that is alive, autograd graphs included.

Breadth first, a thousand objects at a time: ``gc.get_referents`` of a chunk costs as much as of one
object, and the parent of what was found is looked for later, only in the chunk that it came from.
What the user reaches is searched before what belongs to libraries, what modules hold before what
optimizers do, Python's own references before the autograd graph. The search holds every object that
it has seen, and nothing after it has ended.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain, compress
from time import monotonic
from typing import Any

from vramlens.capture.process.graph_depths import GraphDepths
from vramlens.capture.process.referents import Referents, without_giants
from vramlens.capture.process.undisturbed import undisturbed
from vramlens.live.heap.deep_searches import deepest_of
from vramlens.live.heap.objects import is_array, is_users_class
from vramlens.live.heap.parents import FoundIn, parents_of
from vramlens.live.heap.roots import Root, all_roots, module_objects
from vramlens.live.heap.search_time import LONG, SearchTime
from vramlens.live.heap.tensors import Storage, TorchObjects
from vramlens.live.heap.waiting_optimizers import WaitingOptimizers
from vramlens.units import GIB, counted

_CHUNK = 1024
"""Objects whose referents are asked for at once. A parent is looked for in one chunk again: with twice
as many that takes twice as long, with half the calls do.
"""
_MOST_BYTES = GIB
"""Of the search itself: nine million objects at 112 bytes. With half, large programs would be searched
in part; twice as much may be what was left on the machine.
"""
_BYTES_AN_OBJECT = 112  # its places in ``order`` and ``seen``, and its id
_BYTES_A_REFERENCE = 16
_DEPTH_CHECK = 64  # autograd nodes between looks at the clock: unseen beside them
_GIANTS = "the contents of some very large containers (not enough memory to search them)"


class Search:
    """What one search found.

    Attributes:
        order: everything that was reached, parents before children; the roots first.
        roots: the root of each of the first positions of each tier, by position.
        storages: where each storage was reached first, by storage.
        tensors: positions of all tensors and storages.
        is_graph: positions that were reached through the autograd graph.
        skipped: what the search left out, one sentence each.
        seconds: how long it took.
    """

    def __init__(
        self, torch: TorchObjects, allowed: SearchTime = LONG, *, is_brief: bool = False
    ) -> None:
        """Prepares.

        Args:
            torch: PyTorch's objects.
            allowed: the time after which it ends, and says so.
            is_brief: whether it is one of many on the way to others.
        """
        self.torch = torch
        self.order: list[Any] = []
        self.roots: dict[int, Root] = {}
        self.storages: dict[Storage, int] = {}
        self.storage_at: dict[int, Storage] = {}
        self.seen: set[int] = set()
        self.skipped: list[str] = []
        self.seconds = 0.0
        self.graph_from: list[tuple[int, int]] = []  # ranges of positions reached through autograd
        self.referents = Referents()
        self._allowed = allowed
        self._deadline = allowed.clock() + allowed.seconds
        self._parents: list[tuple[int, int]] = []  # of each chunk: where its parents are
        self._starts: list[int] = []  # of each chunk: where its children begin
        self._labels: dict[int, str] = {}  # how a child was reached where only we know
        self._later: list[Any] = []  # classes of libraries: searched with the libraries
        self._waiting_graphs: list[int] = []
        self._graph_depths = GraphDepths(torch.torch, deepest_of(is_brief=is_brief))
        self._cut_age: int | None = None  # of the newest node that is not looked behind
        self._optimizers = WaitingOptimizers()
        self._special: dict[int, str] = {}
        self._tier = 0

    def run(self, roots: list[Root] | None = None, tiers: tuple[int, ...] = (0, 1)) -> Search:
        """Searches; afterwards ``order`` and ``storages`` are filled.

        Args:
            roots: by default all of this moment.
            tiers: of the roots that are searched from: 0 the user's own, 1 all else.
        """
        began = monotonic()
        with undisturbed(), self.torch.torch._C.DisableTorchFunction():
            self._prepare()
            roots = all_roots() if roots is None else roots
            self.seen |= {id(root.value) for root in roots if root.kind == "module"}
            self.seen.update(map(id, module_objects()))
            for tier in tiers:
                self._tier = tier
                first = len(self.order)
                self._seed([root for root in roots if root.tier == tier])
                if tier == 1:
                    self._seed([Root("class", "", cls, 1) for cls in self._later])
                self._explore_with_graphs(first)
                if self.is_over:
                    break
        self.seconds = monotonic() - began
        return self

    def go_on(self, found: list[tuple[str, Any]]) -> None:
        """Searches on: from what is held in a way that nobody can see, by name, and behind what
        was taken in.
        """
        if self.is_over:
            return
        first = len(self.order)
        self._seed([Root("hidden", name, value, 0) for name, value in found])
        self.explore_from(first)

    def explore_from(self, first: int) -> None:
        """Searches on behind everything that was taken in from a position on."""
        self._tier = 0
        self._explore_with_graphs(first)

    def take_in(self, parent: int, way: Iterable[tuple[str, Any]]) -> int:
        """Adds objects that the collector does not know, each held by the one before; gives the
        last one's position.
        """
        for label, value in way:
            self._special.setdefault(id(type(value)), "untracked")
            new = self._adopt(parent, ((label, value),))
            if not new:
                return parent
            self._expand_tensor(new[0])
            parent = new[0]
        return parent

    def take_in_contents(self, parent: int, contents: Iterable[tuple[str, Any]]) -> None:
        """Adds what an object holds that tells the collector nothing."""
        for position in self._adopt(parent, contents):
            self._expand_tensor(position)

    def unreached_storage(self, tensor: Any) -> Storage | None:
        """The storage behind a tensor; None where the search has reached it, or there is none."""
        storage = self.torch.storage_of(tensor)
        return None if storage in self.storages else storage

    @property
    def is_over(self) -> bool:
        """Whether the search has used up its time or its memory."""
        return self._allowed.clock() > self._deadline or self._room_bytes < 0

    def go_further(self) -> None:
        """Gives what follows as much time again."""
        if not self.is_over:
            self._deadline = self._allowed.clock() + self._allowed.seconds

    @property
    def live_bytes(self) -> int:
        """Bytes of all storages that were reached."""
        return sum(storage.size_bytes for storage in self.storages)

    @property
    def complete(self) -> bool:
        """Whether everything was searched."""
        return not self.skipped

    @property
    def has_cut_graphs(self) -> bool:
        """Whether autograd graphs are so deep that their oldest nodes were not looked at."""
        return self._cut_age is not None

    def in_graph(self, position: int) -> bool:
        """Whether something was reached only through an autograd graph."""
        return any(start <= position < end for start, end in self.graph_from)

    def looks_at(self, storage: Storage) -> list[int]:
        """Positions of all tensors that look at a storage."""
        return [position for position, other in self.storage_at.items() if other == storage]

    def graph_nodes(self) -> list[int]:
        """Positions of the autograd nodes that were reached through the graph."""
        order, is_node = self.order, self.torch.is_node
        places = chain.from_iterable(range(low, high) for low, high in self.graph_from)
        return [place for place in places if is_node(order[place])]

    def close(self) -> None:
        """Lets go of everything."""
        for table in (
            self.order,
            self.roots,
            self.storages,
            self.storage_at,
            self.seen,
            self._later,
            self._labels,
        ):
            table.clear()

    def parents(self, positions: Iterable[int]) -> dict[int, tuple[int, str]]:
        """For these positions and all above them: the parent's position (-1 for a root) and a
        label if we made one.
        """
        tables = FoundIn(self.order, self.roots, self._starts, self._parents, self._labels)
        return parents_of(positions, tables, self.referents)

    def path(
        self, position: int, parents: Mapping[int, tuple[int, str]] | None = None
    ) -> list[int]:
        """The positions from the root to this one."""
        parents = self.parents([position]) if parents is None else parents
        path = [position]
        while (above := parents[path[-1]][0]) >= 0:
            path.append(above)
        return path[::-1]

    def _prepare(self) -> None:
        torch = self.torch
        torch.refresh()
        self._special = dict.fromkeys(torch.tensor_types, "tensor")
        self._special |= dict.fromkeys(torch.storage_types, "storage")
        self._special |= dict.fromkeys(torch.node_types, "node")
        self._special |= dict.fromkeys(torch.checkpoint_types, "checkpoint")
        waiting: list[Any] = [type]
        while waiting:
            kind = waiting.pop()
            if id(kind) not in self._special:
                self._special[id(kind)] = "class"
                waiting.extend(type.__subclasses__(kind))
        self._special[id(types.CodeType)] = "code"
        self._optimizers.types = self.torch.optimizer_types()
        self._special |= dict.fromkeys(self._optimizers.types, "optimizer")
        own = (self, self.__dict__, self.order, self.seen, sys.modules, self._special)
        self.seen |= set(map(id, own))

    def _seed(self, roots: list[Root]) -> None:
        for root in roots:
            value = root.value
            if self._optimizers.has_to_wait(value):
                self._optimizers.add(value, root)
                continue
            is_known = root.kind in ("module", "class")  # kept apart until its turn
            if not is_known and (
                id(value) in self.seen or not (gc.is_tracked(value) or is_array(value))
            ):
                continue
            position = len(self.order)
            self._parents.append((position, position))
            self._starts.append(position)
            self.order.append(value)
            self.seen.add(id(value))
            self.roots[position] = root
            self._notice(position, value)

    def _notice(self, position: int, value: Any) -> None:
        kind = self._special.get(id(type(value)))
        if kind in ("tensor", "storage"):
            storage = self.torch.storage_of(value)
            if storage is not None:
                self.storage_at[position] = storage
                self.storages.setdefault(storage, position)

    def _explore_with_graphs(self, low: int) -> None:
        """All that is reached from a position on: what modules hold first, what optimizers do
        then, autograd graphs last. Parameters are called by what a person calls them.
        """
        self._explore(low)
        while self._optimizers.waiting:
            self._explore(self._take_in_optimizers())
        graphs = len(self.order)
        self._explore_graphs()
        self.graph_from.append((graphs, len(self.order)))

    def _take_in_optimizers(self) -> int:
        """Adds the optimizers that have waited; gives the first one's position."""
        first = len(self.order)
        for optimizer, holder in self._optimizers.take():
            if isinstance(holder, Root):
                self._seed([holder])
            else:
                self._adopt(holder, [("", optimizer)])
        return first

    def _explore(self, low: int) -> None:
        """All that is reached from a position on, but for autograd graphs, which wait."""
        order, reached = self.order, self.seen
        special_ids, tracked = self._special, gc.is_tracked
        seeds = len(order) if low in self.roots else low
        while low < len(order):
            high = min(low + _CHUNK, len(order))
            if self.is_over:
                self._give_up(low)
                return
            try:
                referents = self.referents.of(self._not_too_large(order[low:high]))
            except MemoryError:
                self.skipped.append(_GIANTS)
                low = high
                continue
            tracked_referents = list(filter(tracked, referents))
            del referents
            by_id = dict(zip(map(id, tracked_referents), tracked_referents, strict=True))
            del tracked_referents
            fresh = by_id.keys() - reached
            first = len(order)
            if fresh:
                # In the order in which they are held: of two lists of the same things one is first.
                new = list(map(by_id.__getitem__, filter(fresh.__contains__, by_id)))
                del by_id
                odd = list(compress(new, map(special_ids.__contains__, map(id, map(type, new)))))
                self._parents.append((low, high))
                self._starts.append(first)
                if odd:
                    new = self._sorted_out(new, odd, low, high)
                    fresh = set(map(id, new))
                reached |= fresh
                order += new
                if odd:
                    self._expand_special(first)
            if low < seeds:
                self._expand_seeds(low, min(high, seeds))
            low = high

    def _expand_special(self, first: int) -> None:
        """Takes in what new tensors and checkpoints hold, from a position on."""
        order, special_ids = self.order, self._special
        specials = map(special_ids.__contains__, map(id, map(type, order[first:])))
        for place in list(compress(range(first, len(order)), specials)):
            self._notice(place, order[place])
            kind = special_ids[id(type(order[place]))]
            if kind == "tensor":
                self._expand_tensor(place)
            elif kind == "checkpoint":
                self.take_in_contents(place, self.torch.held_by_checkpoint(order[place]))

    def _expand_seeds(self, low: int, high: int) -> None:
        """Takes in what roots hold that are tensors; graphs behind them wait."""
        for place in range(low, high):
            if self.torch.is_tensor(self.order[place]):
                self._expand_tensor(place)
            elif self.torch.is_node(self.order[place]):
                self._waiting_graphs.append(place)

    def _sorted_out(self, new: list[Any], odd: list[Any], low: int, high: int) -> list[Any]:
        """New objects without those that wait: classes of libraries, autograd nodes; and code,
        which holds nothing.
        """
        kinds = [self._special[id(type(value))] for value in odd]
        passed_over = list(compress(odd, map(self._is_passed_over, odd, kinds)))
        passed_ids = set(map(id, passed_over))
        self.seen |= passed_ids
        if "node" in kinds:  # held by something else than the tensor that they made: it waits there
            self._waiting_graphs += filter(self._holds_nodes, range(low, high))
            passed_ids.update(
                id(value) for value, kind in zip(odd, kinds, strict=True) if kind == "node"
            )
        for optimizer in filter(self._optimizers.has_to_wait, odd):
            passed_ids.add(id(optimizer))
            holder = self.referents.place_of_holder(optimizer, self.order[low:high])
            self._optimizers.add(optimizer, low + holder)
        return [value for value in new if id(value) not in passed_ids]

    def _is_passed_over(self, value: Any, kind: str) -> bool:
        """Whether nothing is looked for behind an object now; a library's class waits."""
        if kind == "class" and self._tier == 0 and not is_users_class(value):
            self._later.append(value)
            return True
        return kind == "code"

    def _holds_nodes(self, place: int) -> bool:
        holder, torch = self.order[place], self.torch
        return not torch.is_tensor(holder) and any(
            map(torch.is_node, self.referents.of_one(holder))
        )

    def _adopt(self, parent: int, held: Iterable[tuple[str, Any]]) -> list[int]:
        """Adds what a special object holds, one by one; gives the new positions."""
        new: list[int] = []
        for label, value in held:
            if id(value) in self.seen or not (
                gc.is_tracked(value) or self._special.get(id(type(value)))
            ):
                continue
            position = len(self.order)
            self._parents.append((parent, parent + 1))
            self._starts.append(position)
            self.order.append(value)
            self.seen.add(id(value))
            self._labels[position] = label
            self._notice(position, value)
            new.append(position)
        return new

    def _expand_tensor(self, position: int) -> None:
        waiting = [position]
        while waiting:
            place = waiting.pop()
            tensor = self.order[place]
            if not self.torch.is_tensor(tensor):
                continue
            waiting += self._adopt(place, self.torch.held_by_tensor(tensor))
            if self.torch.has_grad_fn(tensor):
                self._waiting_graphs.append(place)

    def _explore_graphs(self) -> None:
        """The autograd graphs behind all tensors so far, and what only they reach."""
        while self._waiting_graphs:
            waiting, self._waiting_graphs = self._waiting_graphs, []
            nodes = list(chain.from_iterable(map(self._nodes_at, waiting)))
            others_from = len(self.order)
            if not self._expand_nodes(nodes):
                return
            for place in nodes:
                # A Function written in Python keeps attributes; any node may have Python hooks.
                referents = self.referents.of_one(self.order[place])
                self._adopt(
                    place, [("", part) for part in referents if not self.torch.is_node(part)]
                )
            for place in range(others_from, len(self.order)):
                if self.torch.is_tensor(self.order[place]):
                    self._expand_tensor(place)
            self._explore(others_from)

    def _nodes_at(self, place: int) -> list[int]:
        """Positions of the autograd nodes that something holds, or is."""
        holder = self.order[place]
        if self.torch.is_node(holder):
            return [place]
        if not self.torch.is_tensor(holder):
            nodes = filter(self.torch.is_node, self.referents.of_one(holder))
            return self._adopt(place, [("", node) for node in nodes])
        depth = self._graph_depths.depth_of(holder)
        has_room = self._graph_depths.has_room(depth)
        node = self.torch.grad_fn(holder) if has_room else None
        if node is None:
            return []
        self._graph_depths.is_below(node, depth)
        return self._adopt(place, [(".grad_fn", node)])

    def _expand_nodes(self, nodes: list[int]) -> bool:
        """Adds all nodes behind these, and takes in what they hold; false where the search ends.

        The newest nodes come first: what holds a node was made after it, so that its depth is known.
        """
        waiting = [(-(self.torch.sequence_of(self.order[place]) or 0), place) for place in nodes]
        heapify(waiting)
        done = 0
        while waiting:
            age, place = heappop(waiting)
            done += 1
            if done % _DEPTH_CHECK == 0 and self.is_over:
                self._give_up(place)
                return False
            depth = self._graph_depths.depth_of(self.order[place])
            # What is older than where a graph was cut may be a part of it, whoever else holds it.
            is_older = self._cut_age is not None and age > self._cut_age
            if is_older or not self._graph_depths.has_room(depth):
                self._cut_age = age if self._cut_age is None else min(age, self._cut_age)
                continue
            held = list(self.torch.held_by_node(self.order[place]))
            children = self._adopt(place, held)
            for _, value in held:
                if id(value) in self.seen:  # else its identity may become another's
                    self._graph_depths.is_below(value, depth + 1)
            for child in children:
                if self.torch.is_node(self.order[child]):
                    nodes.append(child)
                    heappush(waiting, (-(self.torch.sequence_of(self.order[child]) or 0), child))
        return True

    @property
    def _room_bytes(self) -> int:
        """What the search may still take for itself."""
        return _MOST_BYTES - len(self.order) * _BYTES_AN_OBJECT

    def _not_too_large(self, values: list[Any]) -> list[Any]:
        """These objects without containers so large that what they hold would not fit in the
        search's memory.
        """
        fitting = without_giants(values, self._room_bytes // _BYTES_A_REFERENCE)
        if len(fitting) < len(values):
            self.skipped.append(_GIANTS)
        return fitting

    def _give_up(self, position: int) -> None:
        self._waiting_graphs.clear()
        limit = "memory" if self._room_bytes < 0 else "time"
        self.skipped.append(
            f"the search ended at its {limit} limit after {counted(position, 'object')}; the rest"
            " was not searched"
        )
