"""Paths of all live modules, from the names of their roots on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramlens.capture.names.live_heap import LiveHeap, named_items
from vramlens.ground.live_objects import class_name

_PARALLEL = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
)
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class UniqueNames:
    """Names that were not given yet: ``GPT``, ``GPT_2``, ..."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        """The name, with a number where it was given before."""
        number = self._count[name] = self._count.get(name, 0) + 1
        return name if number == 1 else self(f"{name}_{number}")


class ModuleNames:
    """The live modules and how they are called.

    Attributes:
        tables: the attributes of each module, by its id.
    """

    def __init__(self, heap: LiveHeap) -> None:
        self._heap = heap
        self._modules = heap.live.get("module", [])
        self.tables = {id(module): dict(heap.attributes(module)) for module in self._modules}

    def paths(
        self, trained: set[int], root_names: Mapping[int, str], variables: Mapping[int, str]
    ) -> dict[int, str]:
        """Paths of all modules by id; the first path of those that are reached by several.

        Args:
            trained: ids of the parameters that optimizers train.
            root_names: names for roots, by id, that are better than the script's ``variables``.
        """
        roots = self._roots(trained)
        names = [self._name_of_root(root, root_names, variables) for root in roots]
        if roots and "model" not in names and names[0] not in root_names.values():
            names[0] = "model"
        paths: dict[int, str] = {}
        unique = UniqueNames()
        for root, name in zip(roots, names, strict=True):
            self._walk(root, unique(name or self._class_of_model(root)), paths)
        for module in self._modules:  # rings of modules, which have no root
            if id(module) not in paths:
                self._walk(module, unique(class_name(type(module))), paths)
        return paths

    def parameters(self, module: int) -> list[tuple[str, Any]]:
        """Names and parameters of a module's own, given its id."""
        return named_items(self.tables[module].get("_parameters"))

    def _children(self, module: Any) -> list[tuple[str, Any]]:
        children = named_items(self.tables[id(module)].get("_modules"))
        return [(name, child) for name, child in children if id(child) in self.tables]

    def _roots(self, trained: set[int]) -> list[Any]:
        """The modules that are not another's child, the most important first."""
        children = {id(child) for module in self._modules for _, child in self._children(module)}
        roots = [module for module in self._modules if id(module) not in children]
        roots.sort(key=lambda root: self._weight(root, trained))
        return roots

    def _weight(self, root: Any, trained: set[int]) -> tuple[int, int]:
        """For sorting: first what an optimizer trains, then what is large (an average is as
        large as its model).
        """
        trained_bytes = all_bytes = 0
        below: dict[int, str] = {}
        self._walk(root, "", below)
        for module in below:
            for _, parameter in self.parameters(module):
                if self._heap.kind(parameter) == "tensor":
                    size = sum(part.size_bytes for _, part in self._heap.storages(parameter))
                    all_bytes += size
                    trained_bytes += size if id(parameter) in trained else 0
        return -trained_bytes, -all_bytes

    def _name_of_root(
        self, root: Any, root_names: Mapping[int, str], variables: Mapping[int, str]
    ) -> str:
        """The name that a root, or what it wraps, has in one of the tables; "" if none."""
        chain = [id(module) for module in self._wrapped(root)]
        for table in (root_names, variables):
            for module in chain:
                if module in table:
                    return table[module]
        return ""

    def _class_of_model(self, root: Any) -> str:
        """The class of the outermost module that is not a wrapper."""
        classes = (class_name(type(module)) for module in self._wrapped(root))
        return next((name for name in classes if name not in _PARALLEL), _PARALLEL[0])

    def _wrapped(self, root: Any) -> list[Any]:
        """A root, and inside of it what it wraps."""
        chain = [root]
        while True:
            inner = self._wrapped_child(chain[-1], outermost=True)
            if inner is None or any(inner is module for module in chain):
                return chain
            chain.append(inner)

    def _wrapped_child(self, module: Any, outermost: bool) -> Any:
        """The child whose name nobody thinks of; ``module`` is a word, and so dropped only at
        the top.
        """
        children = self._children(module)
        has_parameters = any(parameter is not None for _, parameter in self.parameters(id(module)))
        is_bare_wrapper = outermost and not has_parameters and len(children) == 1
        wrapped = (*_WRAPPED, "module") if is_bare_wrapper else _WRAPPED
        return next((child for name, child in children if name in wrapped), None)

    def _walk(self, root: Any, name: str, paths: dict[int, str]) -> None:
        waiting = [(root, name, True)]
        while waiting:
            module, path, outermost = waiting.pop()
            if id(module) in paths:
                continue
            paths[id(module)] = path
            wrapped = self._wrapped_child(module, outermost)
            for child_name, child in reversed(self._children(module)):
                is_wrapped = child is wrapped
                child_path = path if is_wrapped else f"{path}.{child_name}"
                waiting.append((child, child_path, outermost and is_wrapped))
