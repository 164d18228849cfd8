"""Which kind of leak it is, from its chain and the statement that keeps it; and what to change,
in the user's words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from vramlens.live.heap.objects import class_module, class_name, class_order, is_kind
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.leaks.leak_report import Owner
from vramlens.live.source.expressions import receiver_of, text_of
from vramlens.live.source.source import Store, read_source

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)
_LONGEST_SOURCE, _LONGEST_CALL = 32, 70
WORTH_DETACHING = 0.5
"""A detached tensor is the fix where this much or more of the bytes is kept by the graph alone."""
_CACHE = re.compile(r"(?:^|_)(?:lru)?(?:cache[sd]?|memo|memos|registry)(?:_|$)|[a-z]cache$")


def class_of(
    search: Search,
    chain: Chain,
    at: int,
    keeper: Keeper | None,
    statements: Statements,
    graph: bool,
) -> str:
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
    if (chain.root is not None and chain.root.thread) or any(
        _is_of_threads(link.value) for link in links
    ):
        return "thread"
    if any(
        link.how in ("closure", "argument", "default", "self")
        for link in below
        if not _is_graph_link(search, link)
    ):
        return "closure"
    if _is_cache(keeper, links[: at + 1]):
        return "cache"
    if graph:
        return "graph"
    return "container"


def fix_of(
    kind: str,
    keeper: Keeper | None,
    owner: Owner,
    *,
    remade: bool = False,
    pins: str = "",
    device: str = "",
    is_number: bool = False,
    graph_share: float = 1.0,
) -> str:
    """One edit, in terms of the user's line.

    Args:
        kind: the class.
        remade: whether a tensor is made anew, larger, each time.
        pins: the size of a storage that small views keep whole, as text; empty else.
        device: on which most of what is kept is.
        is_number: whether what is kept is a tensor of one element.
        graph_share: how much of the bytes only the autograd graph keeps: what a detached tensor
            would free.
    """
    name, held = owner.name, stored_source(keeper)
    if kind == "graph" and not pins and graph_share < WORTH_DETACHING:
        return _result_fix(owner, held, is_on_cpu=device.startswith("cpu"))
    if kind == "graph":
        return _graph_fix(keeper, name, held, pins, is_number=is_number)
    if pins:
        copy = f"{held}.clone()" if held else "a copy (.clone())"
        return f"keep {copy} instead: a view keeps the whole {pins} behind it"
    if remade:
        moved = "" if device.startswith("cpu") else ", or move its parts off the GPU"
        return f"write into a tensor that is made once{moved}: {name} grows each step"
    if kind == "hook":
        return _hook_fix(keeper, name)
    if kind == "cache" and owner.kind == "lru_cache":
        return (
            f"give it a limit, @lru_cache(maxsize=...), or call {name.removesuffix(' (lru_cache)')}.cache_clear() when"
            " its keys are over; do not key it by a tensor or a module"
        )
    if kind == "cycle" and "hooks)" in name:
        return "let the hook refer to its module by weakref.ref, or keep its handle and call handle.remove() when done"
    if kind == "container" or (
        kind == "cache" and owner.kind in ("list", "deque", "Queue")
    ):  # they have no keys
        return _container_fix(
            owner, f", or keep {held}.cpu()" if held and not device.startswith("cpu") else ""
        )
    return {
        "cache": f"give {name} a limit on its keys, or empty it when its keys are over",
        "exception": f"keep str(error) instead of the exception in {name}, or call vramlens.release(error): its"
        " traceback holds every variable of its frames",
        "closure": f"do not let the functions in {name} close over tensors, or remove them when they are done",
        "thread": f"empty {name} when the thread's task ends: a thread's variables live as long as the thread",
        "autograd_cycle": "take second derivatives with torch.autograd.grad(..., create_graph=True), or set p.grad ="
        " None after use; on ctx, use save_for_backward",
        "cycle": f"make {name} a weak reference (weakref.ref), or set it to None when done",
    }.get(kind, f"drop what {name} holds when it is no longer used")


def _graph_fix(keeper: Keeper | None, name: str, held: str, pins: str, *, is_number: bool) -> str:
    if keeper is not None and keeper.store is not None and keeper.store.refers_to_itself:
        source = _augmented(keeper.store)
        if source:
            return f"{source}: the graph behind it goes"
        return f"cut the graph between steps: store {name} detached (.detach())"
    if not held:
        number = " or numbers (.item())" if is_number else ""
        return f"keep detached tensors (.detach()){number} there: the graph behind them goes"
    kept = f"{held}.detach()" if not pins or is_number else f"{held}.detach().clone()"
    number = f" or {held}.item()" if is_number else ""
    return f"keep {kept}{number} instead of {held}: the graph behind it goes"


def _result_fix(owner: Owner, held: str, *, is_on_cpu: bool) -> str:
    """For a graph that holds little beside the results themselves, which a detached tensor
    keeps.
    """
    shares = "detached alone, each keeps its memory"
    moved = f", or keep {held or 'each'}.detach().cpu()" if not is_on_cpu else ""
    return f"{_container_fix(owner, moved)}; {shares}"


def _container_fix(owner: Owner, moved: str) -> str:
    bounds = {
        "list": "a deque(maxlen=...)",
        "deque": "maxlen=...",
        "dict": "delete old keys",
        "Queue": "maxsize=...",
    }
    if owner.kind in bounds:
        return f"bound {owner.name} ({bounds[owner.kind]}){',' if moved else ' or'} empty it when its epoch ends{moved}"
    return f"let {owner.name} go of what is no longer used: set it to None, or empty it when its epoch ends{moved}"


def _hook_fix(keeper: Keeper | None, name: str) -> str:
    """For the statement that registers a hook: keep its handle; for one in a hook that stores:
    store less.
    """
    call = statement_source(keeper).partition("#")[0].strip().removeprefix("return ").rstrip(";")
    found = re.search(r"register_\w+", call)
    if found is None:
        return (
            f"empty {name} in each step and keep detached values only (.detach()); or remove the hook:"
            " handle = ...register_..._hook(...), then handle.remove()"
        )
    if re.match(r"[\w.]+\(", call) and call.endswith(")") and len(call) <= _LONGEST_CALL:
        return f"keep the handle, handle = {call}, and call handle.remove() when the hook has done its work"
    return f"keep what {found[0]} returns as handle, and call handle.remove() when the hook has done its work"


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
    value = None if keeper is None or keeper.store is None else keeper.store.value
    if isinstance(value, ast.Call):
        called = value.func
        if not isinstance(called, ast.Attribute) or called.attr in (
            "detach",
            "item",
            "cpu",
            "tolist",
            "numpy",
        ):
            return ""
    elif not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
        return ""
    text = ast.unparse(value)
    return text if len(text) <= _LONGEST_SOURCE else ""


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
                        if (
                            last == "<lambda>"
                            and module.file == file
                            and argument.lineno <= line <= end
                        ):
                            return True
                        names = {
                            node.attr
                            for node in ast.walk(argument)
                            if isinstance(node, ast.Attribute)
                        }
                        if last in names | {
                            node.id for node in ast.walk(argument) if isinstance(node, ast.Name)
                        }:
                            return True
                    elif isinstance(argument, ast.Call):  # a maker of hooks, a partial
                        names = {
                            node.id for node in ast.walk(argument) if isinstance(node, ast.Name)
                        }
                        names |= {
                            node.attr
                            for node in ast.walk(argument)
                            if isinstance(node, ast.Attribute)
                        }
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
        and class_module(base) in ("threading", "_thread")
        for base in class_order(type(value))
    )


def _is_graph_link(search: Search, link: Link) -> bool:
    return link.how in ("grad_fn", "next", "saved") or search.torch.is_node(link.value)


def _is_cache(keeper: Keeper | None, links: Sequence[Link]) -> bool:
    names = [
        link.name.lower()
        for link in links
        if link.how in ("attribute", "class attribute", "global", "variable")
    ]
    if names and _CACHE.search(names[-1]):
        return True
    if keeper is None or keeper.store is None or keeper.store.key is None:
        return False
    store = keeper.store
    return looks_up(store)


def looks_up(store: Store) -> bool:
    """Whether the function that fills a table looks into it first, as caches do."""
    if store.how == "add" or (
        store.how == "call" and store.method not in ("update", "__setitem__")
    ):
        return False  # it adds to what is there
    if store.refers_to_itself and _is_sum(store):
        return False
    body: ast.AST | None = store.function.node
    if body is None:
        return False
    for node in ast.walk(body):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            found = receiver_of(node.comparators[0])
            if found is not None and found[0] == store.name:
                return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
        ):
            found = receiver_of(node.func.value)
            if found is not None and found[0] == store.name:
                return True
    return False


def _is_sum(store: Store) -> bool:
    """Whether what is stored is computed from what was there: ``sums[k] = sums.get(k, 0) + x``."""
    for node in () if store.value is None else ast.walk(store.value):
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Call) and text_of(node.func) != f"{store.name}.get":
            operands = list(node.args)
        for operand in operands:
            found = receiver_of(operand)
            if found is not None and found[0] == store.name:
                return True
    return False
