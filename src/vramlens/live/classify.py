"""Which kind of leak it is, from its chain and the statement that keeps it; and what to change, in the user's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from vramlens.live.chain import Chain, Link
from vramlens.live.expressions import receiver_of
from vramlens.live.keeper import Keeper, Statements
from vramlens.live.objects import class_name, is_kind
from vramlens.live.search import Search
from vramlens.live.source import Store, read_source

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)
_CACHE = re.compile(r"(?:^|_)(?:lru)?(?:cache[sd]?|memo|memos|registry)(?:_|$)|[a-z]cache$")


def class_of(search: Search, chain: Chain, at: int, keeper: Keeper | None, statements: Statements, graph: bool) -> str:
    """The contract's class.

    Args:
        chain: the way to an example of what is kept.
        at: the index in its links of the object that keeps; -1 for a module.
        graph: whether what is kept is mostly an autograd graph.
    """
    links, below = chain.links, chain.links[at + 1 :]
    if _has_exception(chain):
        return "exception"
    if _is_hook(links, keeper, statements):
        return "hook"
    if any(class_name(type(link.value)) == "_lru_cache_wrapper" for link in links):
        return "cache"
    if _has_gradient_graph(search, links):
        return "autograd_cycle"
    if (chain.root is not None and chain.root.thread) or any(_is_of_threads(link.value) for link in links):
        return "thread"
    if any(
        link.how in ("closure", "argument", "default", "self") for link in below if not _is_graph_link(search, link)
    ):
        return "closure"
    if _is_cache(keeper, links[: at + 1]):
        return "cache"
    if graph:
        return "graph"
    return "container"


def fix_of(kind: str, keeper: Keeper | None, name: str, held: str, *, remade: bool, pins: str) -> str:
    """One edit, in terms of the user's line.

    Args:
        kind: the class.
        name: the owner's name.
        held: what the statement stores, as source; empty where it is not known.
        remade: whether a tensor is made anew, larger, each time.
        pins: the size of a storage that small views keep whole, as text; empty else.
    """
    what = held if held and len(held) <= 40 else "what it stores"
    if pins:
        return f"keep {what}.clone() instead: a view keeps the whole {pins} behind it"
    if remade:
        return f"write into a tensor that is made once, or move its parts off the GPU: {name} grows each step"
    if kind == "graph":
        if keeper is not None and keeper.store is not None and keeper.store.refers_to_itself:
            source = _augmented(keeper.store)
            if source:
                return f"{source}: the graph behind it goes"
            return f"cut the graph between steps: {name} = {name}.detach()"
        return f"keep {what}.detach() or {what}.item() instead of {what}: the graph behind it goes"
    return {
        "container": f"bound {name} (deque(maxlen=...)), empty it when its epoch ends, or keep {what}.cpu()",
        "cache": f"bound {name} (lru_cache(maxsize=...), a limit on its keys), or empty it when its keys are over",
        "hook": "keep the handle that register_... returns and call handle.remove(); keep detached values only",
        "exception": f"keep str(error) instead of the exception in {name}, or call vramlens.release(error): its"
        " traceback holds every variable of its frames",
        "closure": f"do not let the functions in {name} close over tensors, or remove them when they are done",
        "thread": f"empty {name} when the thread's task ends: a thread's variables live as long as the thread",
        "autograd_cycle": "take second derivatives with torch.autograd.grad(..., create_graph=True), or set p.grad ="
        " None after use; on ctx, use save_for_backward",
        "cycle": f"make {name} a weak reference (weakref.ref), or set it to None when done",
    }.get(kind, f"drop what {name} holds when it is no longer used")


def statement_source(keeper: Keeper | None) -> str:
    """The text of the statement that keeps, in one line."""
    if keeper is None or not keeper.line:
        return ""
    module = read_source(keeper.file)
    if module is None or not 0 < keeper.line <= len(module.lines):
        return ""
    return module.lines[keeper.line - 1].strip()


def stored_source(keeper: Keeper | None) -> str:
    """What the statement stores, as source."""
    if keeper is None or keeper.store is None or keeper.store.value is None:
        return ""
    if isinstance(keeper.store.value, (ast.Name, ast.Attribute, ast.Subscript)):
        return ast.unparse(keeper.store.value)
    return ""


def hook_registrations(statements: Statements, function_name: str, line: int, file: str) -> bool:
    """Whether a function is registered as a hook anywhere in the user's source."""
    last = function_name.rpartition(".")[2]
    outer = {part for part in function_name.split(".") if part not in ("<lambda>", "")}
    for module in statements.modules():
        for name, calls in module.calls.items():
            if "hook" not in name.lower():
                continue
            for call, _, _, _ in calls:
                for argument in [*call.args, *(one.value for one in call.keywords)]:
                    if isinstance(argument, (ast.Name, ast.Attribute)):
                        text = argument.id if isinstance(argument, ast.Name) else argument.attr
                        if text == last:
                            return True
                    elif isinstance(argument, ast.Lambda):
                        end = argument.end_lineno or argument.lineno
                        if last == "<lambda>" and module.file == file and argument.lineno <= line <= end:
                            return True
                        names = {node.attr for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
                        if last in names | {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}:
                            return True
                    elif isinstance(argument, ast.Call):  # a maker of hooks, a partial
                        names = {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
                        names |= {node.attr for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
                        if names & outer:
                            return True
    return False


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
    if chain.root is not None and chain.root.kind == "exception":
        return True
    return any(is_kind(link.value, BaseException) or link.how == "frame" for link in chain.links)


def _is_hook(links: Sequence[Link], keeper: Keeper | None, statements: Statements) -> bool:
    if any(link.name in _HOOKS or "hook" in link.name.lower() for link in links):
        return True
    if keeper is None or keeper.store is None:
        return False
    return hook_registrations(statements, keeper.store.function.name, keeper.line, keeper.file)


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
        and getattr(base, "__module__", "") in ("threading", "_thread")
        for base in type(value).__mro__
    )


def _is_graph_link(search: Search, link: Link) -> bool:
    return link.how in ("grad_fn", "next", "saved") or search.torch.is_node(link.value)


def _is_cache(keeper: Keeper | None, links: Sequence[Link]) -> bool:
    names = [link.name.lower() for link in links if link.how in ("attribute", "class attribute", "global", "variable")]
    if names and _CACHE.search(names[-1]):
        return True
    if keeper is None or keeper.store is None or keeper.store.key is None:
        return False
    store = keeper.store
    return looks_up(store)


def looks_up(store: Store) -> bool:
    """Whether the function that fills a table looks into it first, as caches do."""
    if store.how == "call" and store.method == "setdefault":
        return False
    body: ast.AST | None = store.function.node
    if body is None:
        return False
    for node in ast.walk(body):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            found = receiver_of(node.comparators[0])
            if found is not None and found[0] == store.name:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            found = receiver_of(node.func.value)
            if found is not None and found[0] == store.name:
                return True
    return False
