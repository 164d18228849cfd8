"""What else is known of parameters and buffers than their names, by device and address of their storages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vramlens.capture.names.holder_names import IN_CALL, caches_of
from vramlens.capture.names.live_heap import LiveHeap
from vramlens.capture.names.module_names import ModuleNames
from vramlens.ground.program_errors import own_errors

_USES = ("frozen", "unstepped", "stepped")
"""What training does with a parameter, from what changes it least on."""


class ParameterFacts:
    """What a look at modules, optimizers and caches tells of parameters and buffers.

    Attributes:
        uses: what training does with a parameter: frozen, unstepped or stepped.
        dtypes: the type of the elements, of buffers too.
        parts: of a DTensor, how many times its storage the whole is.
        kept_by: the cache that has its model as an argument, or the call that has it as a variable.
        unfrozen: the module around it that was to be frozen by an attribute.
        frozen: those that an optimizer has, and that require no gradients.
    """

    def __init__(
        self,
        heap: LiveHeap,
        modules: ModuleNames,
        paths: dict[int, str],
        stepped: Collection[int],
    ) -> None:
        self._heap, self._modules, self._paths, self._stepped = heap, modules, paths, stepped
        self._parameters: Sequence[Any] = ()
        self._buffers: Sequence[Any] = ()
        self._keepers: Mapping[str, str] = {}
        self.uses: dict[tuple[int, int], str] = {}
        self.dtypes: dict[tuple[int, int], str] = {}
        self.parts: dict[tuple[int, int], int] = {}
        self.kept_by: dict[tuple[int, int], str] = {}
        self.unfrozen: dict[tuple[int, int], str] = {}
        self.frozen: set[tuple[int, int]] = set()

    def note(
        self, parameters: Sequence[Any], buffers: Sequence[Any], keepers: Mapping[str, str]
    ) -> None:
        """Notes all there is to know of these.

        Args:
            keepers: by the paths of models of which there are several alike, what holds each.
        """
        self._parameters, self._buffers, self._keepers = parameters, buffers, keepers
        for part in (
            self._note_uses,
            self._note_dtypes,
            self._note_parts,
            self._note_caches,
            self._note_calls,
            self._note_unfrozen,
            self._note_frozen,
        ):
            with own_errors():  # what is odd in one part costs the others nothing
                part()

    def _note_uses(self) -> None:
        """Notes what training does with the storages of parameters; of several that share one, with
        that which it changes most.
        """
        if not self._stepped:
            return
        for parameter in sorted(self._parameters, key=self._use, reverse=True):
            for _, storage in self._heap.storages(parameter):
                place = (storage.device, storage.address)
                self.uses.setdefault(place, _USES[self._use(parameter)])

    def _note_dtypes(self) -> None:
        """Notes the types of parameters and buffers, by their storages."""
        for tensor in (*self._parameters, *self._buffers):
            dtype = self._heap.dtype(tensor)
            for _, storage in self._heap.storages(tensor):
                self.dtypes.setdefault((storage.device, storage.address), dtype)

    def _note_parts(self) -> None:
        """Notes of parameters that are DTensors how many times their storage the whole is."""
        for parameter in self._parameters:
            whole_bytes = self._heap.whole_bytes(parameter)
            for _, storage in self._heap.storages(parameter) if whole_bytes else ():
                parts = round(whole_bytes / storage.size_bytes)
                self.parts.setdefault((storage.device, storage.address), max(1, parts))

    def _note_caches(self) -> None:
        """Notes of parameters which cache has their module, or one around it, as an argument."""
        caches = caches_of(self._heap, self._paths)
        by_path = {self._paths[module]: cache for module, cache in caches.items()}
        for place, _, path in self._parameters_below(by_path):
            self.kept_by.setdefault(place, by_path[path])

    def _note_calls(self) -> None:
        """Notes of parameters that their model is a variable of a call, where there are several such models."""
        calls = {
            path: keeper for path, keeper in self._keepers.items() if keeper.startswith(IN_CALL)
        }
        for place, _, path in self._parameters_below(calls):
            self.kept_by.setdefault(place, calls[path])

    def _note_unfrozen(self) -> None:
        """Notes of parameters that require gradients which module around them has ``requires_grad = False``
        as an attribute: ``requires_grad_(False)`` is the method that would have frozen them.
        """
        paths = {
            path
            for module, path in self._paths.items()
            if self._modules.tables[module].get("requires_grad") is False
        }
        for place, parameter, path in self._parameters_below(paths):
            if self._heap.requires_gradients(parameter):
                self.unfrozen.setdefault(place, path)

    def _note_frozen(self) -> None:
        """Notes which parameters that an optimizer has require no gradients: it may work for them in vain."""
        for parameter in self._parameters:
            if id(parameter) in self._stepped and not self._heap.requires_gradients(parameter):
                for _, storage in self._heap.storages(parameter):
                    self.frozen.add((storage.device, storage.address))

    def _parameters_below(
        self, paths: Collection[str]
    ) -> Iterator[tuple[tuple[int, int], Any, str]]:
        """Yields the storages of parameters of these modules, their children's included, each with its tensor
        and the outermost of these modules around it.
        """
        for module, inner in self._paths.items() if paths else ():
            around = next((path for path in _paths_around(inner) if path in paths), None)
            for _, parameter in self._modules.parameters(module) if around is not None else ():
                if self._heap.kind(parameter) == "tensor":
                    for _, storage in self._heap.storages(parameter):
                        yield (storage.device, storage.address), parameter, around or ""

    def _use(self, parameter: Any) -> int:
        """The place of a parameter's use among ``_USES``."""
        if id(parameter) in self._stepped:
            return _USES.index("stepped")
        is_idle = not self._heap.requires_gradients(parameter)
        return _USES.index("frozen" if is_idle else "unstepped")


def _paths_around(path: str) -> Iterator[str]:
    """Yields the modules around one by their paths, the outermost first, and itself."""
    end = path.find(".")
    while end >= 0:
        yield path[:end]
        end = path.find(".", end + 1)
    yield path
