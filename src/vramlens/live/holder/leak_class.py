"""The class of a leak, from its chain and the statement that keeps it; and what to change, in the
user's words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.leak.fixes import fix_of_class
from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.cycles import BACK_NAMES
from vramlens.live.heap.objects import class_module, class_name, class_order, is_kind
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link
from vramlens.live.holder.keeper import Keeper, Statements, store_of
from vramlens.live.holder.registrations import is_hook_name, is_registered_hook
from vramlens.live.source.expressions import receiver_of, text_of
from vramlens.live.source.source_stores import Store, read_source

_LONGEST_SOURCE, _LONGEST_CALL = 32, 70
WORTH_DETACHING = 0.5
"""A detached tensor is the fix where this much or more of the bytes is kept by the graph alone."""
_DETACHES = ("detach", "item", "cpu", "tolist", "numpy")
_NAMED = ("attribute", "class attribute", "global", "variable")
_WITHOUT_KEYS = ("list", "deque", "Queue")
_BOUNDS = {
    "list": "a deque(maxlen=...)",
    "deque": "maxlen=...",
    "dict": "delete old keys",
    "Queue": "maxsize=...",
}
_WEAK_HOOK = (
    "refer to the module with weakref.ref in the hook, or keep the handle and call "
    "handle.remove() when done"
)
_CACHE = re.compile(r"(?:^|_)(?:lru)?(?:cache[sd]?|memo|memos|registry)(?:_|$)|[a-z]cache$")


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept, as far as it decides what to change.

    Attributes:
        is_remade: whether a tensor is made anew, larger, each time.
        pinned_size: the size of a storage that small views keep whole, as text; empty else.
        device: on which most of it is.
        is_number: whether it is a tensor of one element.
        graph_share: how much of the bytes only the autograd graph keeps: what a detached tensor
            would free.
    """

    is_remade: bool = False
    pinned_size: str = ""
    device: str = ""
    is_number: bool = False
    graph_share: float = 1.0

    @property
    def is_on_cpu(self) -> bool:
        """Whether most of it is in the host's memory."""
        return self.device.startswith("cpu")

    def or_off_gpu(self, advice: str) -> str:
        """An advice to move it to the host, as a last clause; empty where it is there."""
        return f", or {advice}" if advice and not self.is_on_cpu else ""


def class_of(
    search: Search,
    chain: Chain,
    at: int,
    keeper: Keeper | None,
    statements: Statements,
    *,
    is_graph: bool,
) -> str:
    """The contract's class.

    Args:
        chain: the way to an example of what is kept.
        at: the index in its links of the object that keeps; -1 for a module.
        is_graph: whether what is kept is mostly an autograd graph.
    """
    links, below = chain.links, chain.links[at + 1 :]
    rules: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("exception", lambda: _has_exception(chain)),
        ("hook", lambda: _is_hook(links, keeper, statements)),
        ("cache", lambda: any(map(_is_cached_function, links))),
        ("autograd_cycle", lambda: _has_gradient_graph(search, links)),
        ("thread", lambda: _is_in_thread(chain)),
        ("closure", lambda: any(_is_closure_link(search, link) for link in below)),
        ("cache", lambda: _is_cache(keeper, links[: at + 1])),
        ("graph", lambda: is_graph),
    )
    return next((kind for kind, applies in rules if applies()), "container")


def fix_of(kind: str, keeper: Keeper | None, owner: LeakOwner, kept: Kept | None = None) -> str:
    """One edit, in terms of the user's line.

    Args:
        kind: the class.
        kept: what is kept, where more than its class is known.
    """
    facts = kept or Kept()
    source = stored_source(keeper)
    if kind == "graph":
        return _graph_or_result_fix(keeper, owner, source, facts)
    if facts.pinned_size:
        return _pinned_fix(source, facts)
    if facts.is_remade:
        moved = facts.or_off_gpu("move its parts off the GPU")
        return f"write into a tensor that is allocated once{moved}: {owner.name} grows each step"
    if kind == "hook":
        return _hook_fix(keeper, owner.name)
    if kind == "container" or (kind == "cache" and owner.kind in _WITHOUT_KEYS):
        moved = facts.or_off_gpu(source and f"keep {source}.cpu()")
        return _container_fix(owner, moved)
    return _fix_of_class(kind, owner)


def _fix_of_class(kind: str, owner: LeakOwner) -> str:
    name = owner.name
    is_attribute = "." in name
    if kind == "thread" and is_attribute and owner.kind in _BOUNDS:
        return f"limit {name} ({_BOUNDS[owner.kind]}), or remove entries that are done"
    if kind == "cycle" and "hooks)" in name:
        return _WEAK_HOOK
    if kind == "cycle":
        return fix_of_class(_row_of_cycle(owner), name)
    row = "lru_cache" if kind == "cache" and owner.kind == "lru_cache" else kind
    return fix_of_class(row, name)


def _row_of_cycle(owner: LeakOwner) -> str:
    """The fix of a cycle by the edge that closes it: what leads back to a parent may be weak, what
    leads anywhere else may be all that holds it.
    """
    if not owner.line:
        return "cycle_unwritten"
    edge = owner.name.rpartition(".")[2].lower().strip("_")
    return "cycle" if edge in BACK_NAMES else "cycle_forward"


def _pinned_fix(source: str, facts: Kept) -> str:
    """For small tensors that keep a large storage whole."""
    if facts.is_number:
        return _scalar_fix(source, facts.pinned_size)
    copy = f"{source}.clone()" if source else "a copy (.clone())"
    return f"keep {copy} instead: a view keeps the whole {facts.pinned_size} behind it"


def _scalar_fix(source: str, kept_size: str) -> str:
    """For tensors of one element in a storage of many, as ``F.mse_loss`` returns them."""
    number = f"{source}.item() instead of {source}" if source else "numbers (.item())"
    return (
        f"keep {number}: the scalar, detached too, keeps the whole {kept_size} that it was computed"
        " in, as F.mse_loss and F.smooth_l1_loss return it"
    )


def _carrying_store(keeper: Keeper | None) -> Store | None:
    """The statement that makes each step's value from the last one's, of which, detached, only
    the newest stays; None where it is no such.
    """
    store = store_of(keeper)
    return store if store is not None and store.refers_to_itself else None


def _graph_or_result_fix(keeper: Keeper | None, owner: LeakOwner, source: str, facts: Kept) -> str:
    """For a graph that is kept: cut it, unless what is kept is mostly the results themselves."""
    keeps_results = not facts.pinned_size and facts.graph_share < WORTH_DETACHING
    if keeps_results and facts.is_number and source:
        return f"keep {source}.item() instead of {source}, which frees it and its graph"
    carrying_store = _carrying_store(keeper)
    if carrying_store is not None:
        return _carried_fix(carrying_store, owner.name)
    if keeps_results:
        return _result_fix(owner, source, facts)
    return _graph_fix(source, facts)


def _carried_fix(store: Store, name: str) -> str:
    """For a graph that each step goes on."""
    detached_sum = _augmented(store)
    if detached_sum:
        return f"{detached_sum}, which frees the graph behind it"
    return f"cut the graph between steps: store {name} detached (.detach())"


def _graph_fix(source: str, kept: Kept) -> str:
    if kept.pinned_size and kept.is_number:
        return _scalar_fix(source, kept.pinned_size)
    if not source:
        number = " or numbers (.item())" if kept.is_number else ""
        return f"keep detached tensors (.detach()){number} there, which frees the graph behind them"
    copy = f"{source}.detach().clone()" if kept.pinned_size else f"{source}.detach()"
    number = f" or {source}.item()" if kept.is_number else ""
    return f"keep {copy}{number} instead of {source}, which frees the graph behind it"


def _result_fix(owner: LeakOwner, source: str, facts: Kept) -> str:
    """For a graph that holds little beside the results themselves, which a detached tensor
    keeps.
    """
    shares = "a detached tensor still keeps its own memory"
    moved = facts.or_off_gpu(f"keep {source or 'each'}.detach().cpu()")
    return f"{_container_fix(owner, moved)}; {shares}"


def _container_fix(owner: LeakOwner, moved: str) -> str:
    bound = f"del {owner.name}[:-n]" if _must_stay_a_list(owner) else _BOUNDS.get(owner.kind)
    if bound is None:
        return fix_of_class("container", owner.name) + moved
    conjunction = "," if moved else " or"
    return f"limit {owner.name} ({bound}){conjunction} empty it at the end of the epoch{moved}"


def _must_stay_a_list(owner: LeakOwner) -> bool:
    """Whether the program slices a list, or hands it to ``cat`` or ``stack``: a deque would
    break it.
    """
    module = read_source(owner.file) if owner.kind == "list" and owner.file else None
    if module is None:
        return False
    last = re.escape(owner.name.partition("[")[0].rpartition(".")[2])
    list_use = re.compile(rf"\b{last}(?:\[[^]]+\])?\[[^]]*:|\b(?:cat|stack)\([^)]*\b{last}\b")
    return any(map(list_use.search, module.lines))


def _hook_fix(keeper: Keeper | None, name: str) -> str:
    """For the statement that registers a hook: keep its handle; for one in a hook that stores:
    store less.
    """
    call = statement_source(keeper).partition("#")[0].strip().removeprefix("return ").rstrip(";")
    registration = re.search(r"register_\w+", call)
    if registration is None:
        return fix_of_class("hook", name)
    if re.match(r"[\w.]+\(", call) and call.endswith(")") and len(call) <= _LONGEST_CALL:
        advice = f"keep the handle, handle = {call},"
    else:
        advice = f"keep what {registration[0]} returns as handle,"
    return f"{advice} and call handle.remove() when the hook is no longer needed"


def statement_source(keeper: Keeper | None) -> str:
    """The text of the statement that keeps, in one line."""
    if keeper is None or not keeper.line:
        return ""
    module = read_source(keeper.file)
    if module is None or not 0 < keeper.line <= len(module.lines):
        return ""
    return module.lines[keeper.line - 1].strip()


def stored_source(keeper: Keeper | None) -> str:
    """What the statement stores, as source to which a method can be added; empty where it is
    long or something else.
    """
    store = store_of(keeper)
    value = None if store is None else store.value
    if isinstance(value, ast.Call):
        called = value.func
        if not isinstance(called, ast.Attribute) or called.attr in _DETACHES:
            return ""
    elif not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
        return ""
    text = ast.unparse(value)
    return text if len(text) <= _LONGEST_SOURCE else ""


def _augmented(store: Store) -> str:
    """``total += loss.detach()`` for ``total += loss``."""
    if store.how != "add" or not isinstance(store.statement, ast.AugAssign) or store.value is None:
        return ""
    target, value = ast.unparse(store.statement.target), ast.unparse(store.value)
    if isinstance(store.value, (ast.BinOp, ast.Compare, ast.BoolOp, ast.Lambda)):
        value = f"({value})"
    text = f"{target} += {value}.detach()"
    return text if len(text) <= 80 else ""


def _has_exception(chain: Chain) -> bool:
    is_root = chain.root is not None and chain.root.kind == "exception"
    return is_root or any(
        is_kind(link.value, BaseException) or link.how == "frame" for link in chain.links
    )


def _is_hook(links: Sequence[Link], keeper: Keeper | None, statements: Statements) -> bool:
    if any(is_hook_name(link.name) for link in links):
        return True
    if keeper is None or keeper.store is None:
        return False
    return is_registered_hook(statements, keeper.store.function.name, keeper.file, keeper.line)


def _is_cached_function(link: Link) -> bool:
    return class_name(type(link.value)) == "_lru_cache_wrapper"


def _is_in_thread(chain: Chain) -> bool:
    is_variable_of_thread = chain.root is not None and bool(chain.root.thread)
    return is_variable_of_thread or any(_is_of_threads(link.value) for link in chain.links)


def _is_closure_link(search: Search, link: Link) -> bool:
    """Whether a function holds what follows, other than a function of an autograd graph."""
    is_function = link.how in ("closure", "argument", "default", "self")
    return is_function and not search.torch.is_node(link.value)


def _has_gradient_graph(search: Search, links: Sequence[Link]) -> bool:
    """Whether the chain goes through a gradient that has a graph of its own."""
    for index, link in enumerate(links[:-1]):
        is_gradient = link.how == "gradient" or (link.how == "attribute" and link.name == "grad")
        if is_gradient and search.torch.is_tensor(link.value) and links[index + 1].how == "grad_fn":
            return True
    return False


def _is_of_threads(value: Any) -> bool:
    return any(
        class_name(base) in ("Thread", "local", "_local")
        and class_module(base) in ("threading", "_thread")
        for base in class_order(type(value))
    )


def _is_cache(keeper: Keeper | None, links: Sequence[Link]) -> bool:
    names = [link.name.lower() for link in links if link.how in _NAMED]
    if names and _CACHE.search(names[-1]):
        return True
    store = store_of(keeper)
    return store is not None and store.key is not None and looks_up(store)


def looks_up(store: Store) -> bool:
    """Whether the function that fills a table looks into it first, as caches do."""
    is_addition = store.how == "call" and store.method not in ("update", "__setitem__")
    if store.how == "add" or is_addition or (store.refers_to_itself and _is_sum(store)):
        return False
    body: ast.AST | None = store.function.node
    if body is None:
        return False
    tables = (_looked_up_table(node) for node in ast.walk(body))
    return any(table is not None and _is_name_of(store, table) for table in tables)


def _looked_up_table(node: ast.AST) -> ast.expr | None:
    """``table`` of ``key in table`` and of ``table.get(key)``."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return node.comparators[0]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    return node.func.value if node.func.attr == "get" else None


def _is_name_of(store: Store, expression: ast.expr) -> bool:
    receiver = receiver_of(expression)
    return receiver is not None and receiver[0] == store.name


def _is_sum(store: Store) -> bool:
    """Whether what is stored is computed from what was there: ``sums[k] = sums.get(k, 0) + x``."""
    if store.value is None:
        return False
    operands = (part for node in ast.walk(store.value) for part in _operands(node, store.name))
    return any(_is_name_of(store, operand) for operand in operands)


def _operands(node: ast.AST, table: str) -> list[ast.expr]:
    """What a node computes with; a look into the table itself is no computation."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and text_of(node.func) != f"{table}.get":
        return node.args
    return []
