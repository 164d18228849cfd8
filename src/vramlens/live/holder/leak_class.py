"""The class of a leak, from its chain and the statement that keeps it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from vramlens.ground.source_code import last_name
from vramlens.live.heap.objects import class_module, class_name, class_order
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link
from vramlens.live.holder.keeper import Keeper, Statements, store_of
from vramlens.live.holder.registrations import is_hook_name, is_registered_hook
from vramlens.live.source.expressions import nodes_in, receiver_of, text_of
from vramlens.live.source.source_stores import Store

_NAMED = ("attribute", "class attribute", "global", "variable")
_CACHE = re.compile(r"(?:^|_)(?:lru)?(?:cache[sd]?|memo|memos|registry)(?:_|$)|[a-z]cache$")


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
        ("exception", lambda: _has_exception(chain, below)),
        ("hook", lambda: _is_hook(links, keeper, statements)),
        ("cache", lambda: any(map(_is_cached_function, links))),
        ("autograd_cycle", lambda: _has_gradient_graph(search, links)),
        ("thread", lambda: _is_in_thread(chain)),
        ("closure", lambda: any(_is_closure_link(search, link) for link in below)),
        ("cache", lambda: _is_cache(keeper, links[: at + 1])),
        ("graph", lambda: is_graph),
    )
    return next((kind for kind, applies in rules if applies()), "container")


def _has_exception(chain: Chain, below: Sequence[Link]) -> bool:
    """Whether the variables of an exception's frames are kept, or those of a frame. What grows in a
    variable of such a frame is no exception.
    """
    is_root = chain.root is not None and chain.root.kind == "exception"
    return is_root or any(link.how in ("traceback", "frame") for link in below)


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
    """Whether the function that fills a table looks into it first, as caches do; outside of
    functions, whether the statement depends on such a look.
    """
    is_addition = store.how == "call" and store.method not in ("update", "__setitem__")
    if store.how == "add" or is_addition or _is_sum(store):
        return False
    body: ast.AST | None = store.function.node
    nodes = nodes_in(store.guards) if body is None else ast.walk(body)
    tables = map(_looked_up_table, nodes)
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
    operands = [part for node in ast.walk(store.value) for part in _operands(node, store.name)]
    if any(_is_name_of(store, operand) for operand in operands):
        return True
    earlier = _earlier_values(store)
    if any(_says_missing(guard, store, earlier) for guard in store.guards):
        return False
    return any(_joins_earlier(node, store, earlier) for node in ast.walk(store.value))


def _joins_earlier(node: ast.AST, store: Store, earlier: set[str]) -> bool:
    """Whether a node computes with what the table had, and with something else: ``0.9 * old``, ``torch.lerp(old, x,
    0.1)``. A call that is given nothing else may copy or move it, and one of a class wraps it.
    """
    if isinstance(node, ast.BinOp):
        return any(_is_earlier(part, store, earlier) for part in (node.left, node.right))
    if not isinstance(node, ast.Call) or last_name(node.func)[:1].isupper():
        return False
    called = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    is_old = [_is_earlier(_unchained(part), store, earlier) for part in (*called, *node.args)]
    key = "" if store.key is None else text_of(store.key)
    is_given_more = any(
        not old and not isinstance(part, ast.Constant) and text_of(part) != key
        for part, old in zip(node.args, is_old[len(called) :], strict=True)
    )
    return any(is_old) and is_given_more


def _unchained(expression: ast.expr) -> ast.expr:
    """``old`` of ``old.detach().float()``."""
    while isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        expression = expression.func.value
    return expression


def _says_missing(guard: ast.expr, store: Store, earlier: set[str]) -> bool:
    """Whether a statement under a condition runs only where the table had no entry: ``if row is None``,
    ``if key not in rows``.
    """
    match guard:
        case ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=condition)):
            return _says_missing(condition, store, earlier)
        case ast.UnaryOp(op=ast.Not(), operand=condition):
            return _says_there(condition, store, earlier)
        case ast.BoolOp(op=ast.And(), values=parts):
            return any(_says_missing(part, store, earlier) for part in parts)
        case ast.Compare(left=left, ops=[ast.Is()]):
            return _is_earlier(left, store, earlier)
        case ast.Compare(ops=[ast.NotIn()], comparators=[table]):
            return _is_name_of(store, table)
    return False


def _says_there(guard: ast.expr, store: Store, earlier: set[str]) -> bool:
    """Whether a condition holds wherever the table had an entry: ``row is not None``, ``key in rows``, ``row``."""
    match guard:
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_says_there(part, store, earlier) for part in parts)
        case ast.Compare(left=left, ops=[ast.IsNot()]):
            return _is_earlier(left, store, earlier)
        case ast.Compare(ops=[ast.In()], comparators=[table]):
            return _is_name_of(store, table)
    return _is_earlier(guard, store, earlier)


def _is_earlier(expression: ast.expr, store: Store, earlier: set[str]) -> bool:
    """Whether an expression is what the table had: ``row``, ``rows.get(key)``, ``row := rows.get(key)``."""
    if isinstance(expression, ast.NamedExpr):
        expression = expression.value
    is_variable = isinstance(expression, ast.Name) and expression.id in earlier
    return is_variable or _reads_table(expression, store)


def _earlier_values(store: Store) -> set[str]:
    """The variables that hold what the table had: ``old = sums.get(k, x)``, ``(old := sums.get(k))``."""
    body = store.function.node
    return {
        target.id
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, (ast.Assign, ast.NamedExpr)) and _reads_table(node.value, store)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _reads_table(value: ast.expr, store: Store) -> bool:
    """Whether an expression is an entry of the table: ``sums[k]``, ``sums.get(k, x)``."""
    if isinstance(value, ast.Subscript):
        return _is_name_of(store, value.value)
    table = _looked_up_table(value)
    return table is not None and _is_name_of(store, table)


def _operands(node: ast.AST, table: str) -> list[ast.expr]:
    """What a node computes with; a look into the table itself does not count."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and text_of(node.func) != f"{table}.get":
        return node.args
    return []
