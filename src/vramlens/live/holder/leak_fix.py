"""What to change about a leak, in the user's words: an edit of the statement that keeps."""

from __future__ import annotations

import ast
import re

from vramlens.leak.fixes import fix_of_class
from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.cycles import BACK_NAMES
from vramlens.live.holder.call_fix import handing_over, heap_fix, saved_tensors_fix
from vramlens.live.holder.keeper import (
    Keeper,
    statement_source,
    store_of,
    stored_source,
)
from vramlens.live.holder.kept_value import Kept
from vramlens.live.holder.object_fix import (
    exception_fix,
    is_exception,
    object_fix,
    report_fix,
    task_fix,
)
from vramlens.live.holder.removal_fix import removal_beside, removal_fix
from vramlens.live.holder.view_fix import pinned_fix, scalar_fix
from vramlens.live.source.source_stores import Store, read_source
from vramlens.live.source.source_tree import is_in_loop
from vramlens.live.source.statement_scores import gives_a_name

_LONGEST_CALL = 70
WORTH_DETACHING = 0.5
"""A detached tensor is the fix where this much or more of the bytes is kept by the graph alone."""
_BOUNDS = {
    "list": "a deque(maxlen=...)",
    "deque": "maxlen=...",
    "dict": "delete old keys",
    "set": "discard what is done",
    "queue": "maxsize=...",
}
"""How a collection is limited, by its kind."""
_KEEPS_HANDLE = re.compile(r"([A-Za-z_][\w.]*)(?:: [\w.\[\]]+)? = [\w.\[\]]+\.register_\w+\(")
_KEEPS_HANDLES = re.compile(r"([A-Za-z_][\w.]*)\.(?:append|add)\([\w.\[\]]+\.register_\w+\(")
"""Statements that keep what the registration of a hook returns: under a name, or in a collection."""
_FINALIZES_ITSELF = re.compile(r"\bfinalize\(([A-Za-z_][\w.]*), \1\.(\w+)\s*[,)]")
"""Statements that have an object's own method called when the object goes."""
_ENTERS_CONTEXT = re.compile(r"\.enter_(?:async_)?context\(")
"""Names what an ``ExitStack`` keeps until it is closed."""
_NOT_NEEDED = "when the hook is no longer needed"
_REMOVE_EACH = "and call remove() of each when the hooks are no longer needed"
_KEY_OF_STATE = re.compile(r"\w\[(?P<key>[^\[\]]+)\]$")
"""Of the one part of a state that was named: ``Streamer.state[1]``."""


def fix_of(kind: str, keeper: Keeper | None, owner: LeakOwner, kept: Kept | None = None) -> str:
    """One edit, in terms of the user's line.

    Args:
        kind: the class.
        kept: what is kept, where more than its class is known.
    """
    facts = kept or Kept()
    return (
        _fix_of_statement(keeper)
        or _fix_of_object(kind, keeper, owner, facts)
        or _fix_of_tensor(kind, keeper, owner, facts)
        or _fix_of_holder(kind, keeper, owner, facts)
    )


def _fix_of_statement(keeper: Keeper | None) -> str:
    """For a function that ``atexit`` holds: it has to be taken back by what registered it; for an
    object whose own method is to run when it goes: it never goes; for attributes with ever new names.
    """
    store = store_of(keeper)
    if store is not None and gives_a_name(store):
        return (
            "use one name, so that a new tensor replaces the earlier one, or delete what is done:"
            " delattr(module, name)"
        )
    call = statement_source(keeper)
    own_method = _FINALIZES_ITSELF.search(call)
    if own_method:
        return (
            f"give weakref.finalize a function that does not hold {own_method[1]}: its method"
            f" {own_method[2]} keeps {own_method[1]} alive; pass what it needs as arguments"
        )
    if not re.match(r"(?:\w+ = )?@?atexit\.register\b", call):
        return ""
    return (
        "keep the function that atexit.register returns, last = atexit.register(...), and call"
        " atexit.unregister(last) before the next, or register one function once"
    )


def _fix_of_object(kind: str, keeper: Keeper | None, owner: LeakOwner, facts: Kept) -> str:
    """For warnings, tasks, exceptions, and objects that a graph hangs on; empty for all else."""
    special = report_fix(owner.name, facts) or task_fix(keeper, facts)
    if special:
        return special
    if kind == "exception" or is_exception(facts.value):
        return exception_fix(keeper, owner.name, facts)
    if kind != "graph":
        return ""
    is_mostly_graph = facts.form == "object" and facts.graph_share >= WORTH_DETACHING
    return object_fix(keeper, facts) if facts.form == "node" or is_mostly_graph else ""


def _fix_of_tensor(kind: str, keeper: Keeper | None, owner: LeakOwner, facts: Kept) -> str:
    """By what keeps more than a tensor's own values: its graph, a storage of which it is a part;
    empty for all else.
    """
    source = stored_source(keeper)
    if kind == "graph":
        return _graph_or_result_fix(keeper, owner, source, facts)
    if facts.pinned_size:
        return pinned_fix(keeper, source, facts)
    if facts.is_remade:
        return _remade_fix(keeper, owner, facts.or_off_gpu("move its parts off the GPU"))
    return ""


def _remade_fix(keeper: Keeper | None, owner: LeakOwner, moved: str) -> str:
    """For a tensor that is made anew, larger, each time: there is a number of rows that is enough."""
    store = store_of(keeper)
    is_plain = store is not None and store.how == "assign" and not store.key_path
    target = owner.name if store is None else ".".join(filter(None, (store.base, store.name)))
    cut = f" ({target} = {target}[-n:])" if is_plain else ""
    conjunction = "," if moved else ", or"
    return (
        f"cut {target} to the rows that are still used{cut}{conjunction} write into a tensor that"
        f" is allocated once{moved}: it grows each step"
    )


def _fix_of_holder(kind: str, keeper: Keeper | None, owner: LeakOwner, facts: Kept) -> str:
    """By the class of what keeps."""
    if kind == "hook":
        return saved_tensors_fix(keeper) or _hook_fix(keeper, owner.name)
    if kind == "container" or (kind == "cache" and _has_no_keys(facts)):
        moved = facts.or_off_gpu(_keep(facts.with_call(stored_source(keeper), "cpu()")))
        takes_too_little = facts.container == "queue"
        removal = "" if takes_too_little else removal_fix(keeper, facts)
        beside = removal or removal_beside(keeper) or heap_fix(owner, keeper)
        return beside or _container_fix(owner, facts, moved)
    if kind == "cache":
        return removal_beside(keeper) or _fix_of_class(kind, keeper, owner, facts)
    if kind == "closure":
        fix = _fix_of_class(kind, keeper, owner, facts)
        return removal_fix(keeper, facts) or f"{fix}{handing_over(keeper, facts)}"
    return _fix_of_class(kind, keeper, owner, facts)


def _has_no_keys(facts: Kept) -> bool:
    return facts.container in ("list", "deque", "set", "queue")


def _keep(expression: str) -> str:
    return f"keep {expression}" if expression else ""


def _fix_of_class(kind: str, keeper: Keeper | None, owner: LeakOwner, facts: Kept) -> str:
    name = owner.name
    is_attribute = "." in name
    if kind == "thread" and is_attribute and facts.container in _BOUNDS:
        return f"limit {name} ({_BOUNDS[facts.container]}), or remove entries that are done"
    if kind == "cycle" and "hooks)" in name:
        return _hook_fix(keeper, name)
    if kind == "cycle":
        return fix_of_class(_row_of_cycle(owner), name)
    if kind == "closure" and _ENTERS_CONTEXT.search(name):
        return fix_of_class("exit_stack", name)
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


def _leads_up(owner: LeakOwner) -> bool:
    """Whether objects of one class each know their parent, which knows them: set to None, they
    wait for Python's collector.
    """
    path, _, edge = owner.name.rpartition(".")
    return path.rpartition(".")[2] == owner.kind and edge.lower().strip("_") == "parent"


def _carrying_store(keeper: Keeper | None) -> Store | None:
    """The statement that makes each step's value from the last one's, of which, detached, only
    the newest stays; None of another statement.
    """
    store = store_of(keeper)
    return store if store is not None and store.refers_to_itself else None


def _graph_or_result_fix(keeper: Keeper | None, owner: LeakOwner, source: str, facts: Kept) -> str:
    """For a graph that is kept: cut it, unless what is kept is mostly the results themselves."""
    keeps_results = not facts.pinned_size and facts.graph_share < WORTH_DETACHING
    number = facts.with_call(source, "item()") if facts.is_number else ""
    if keeps_results and number:
        return f"keep {number} instead of {source}, which frees it and its graph"
    carrying_store = _carrying_store(keeper)
    if carrying_store is not None:
        return _carried_fix(carrying_store, owner)
    if keeps_results:
        return _result_fix(owner, source, facts)
    return _graph_fix(source, facts)


def _carried_fix(store: Store, owner: LeakOwner) -> str:
    """For a graph that each step goes on."""
    detached_sum = _augmented(store)
    if detached_sum:
        return f"{detached_sum}, which frees the graph behind it"
    form = _form_of_state(store, owner)
    if form:
        target = f"{store.base}.{store.name}" if store.base else store.name
        parts = Kept(form=form).with_call(target, "detach()")
        return f"cut the graph between steps: {target} = {parts}"
    return f"cut the graph between steps: store {owner.name} detached (.detach())"


def _form_of_state(store: Store, owner: LeakOwner) -> str:
    """Whether a tuple, list or dict of tensors is carried on, also where one of them was named:
    the graph goes on behind the others. Empty for a single tensor.
    """
    if owner.kind in ("tuple", "list", "dict"):
        return owner.kind
    key = _KEY_OF_STATE.search(owner.name)
    if key is None or store.keys or store.how != "assign":
        return ""
    return "tuple" if key["key"].isdigit() else "dict"


def _graph_fix(source: str, kept: Kept) -> str:
    if kept.pinned_size and kept.is_number:
        return scalar_fix(source, kept)
    copy = kept.with_call(source, "detach().clone()" if kept.pinned_size else "detach()")
    number = kept.with_call(source, "item()") if kept.is_number else ""
    if not copy:
        numbers = " or numbers (.item())" if kept.is_number else ""
        return (
            f"keep detached tensors (.detach()){numbers} there, which frees the graph behind them"
        )
    edit = " or ".join(filter(None, (copy, number)))
    if number and kept.is_mixed:
        edit = number
    return f"keep {edit} instead of {source}, which frees the graph behind it"


def _result_fix(owner: LeakOwner, source: str, facts: Kept) -> str:
    """For a graph that holds little beside the results themselves, which a detached tensor
    keeps.
    """
    shares = "a detached tensor still keeps its own memory"
    copy = facts.with_call(source or "each", "detach().cpu()")
    return f"{_container_fix(owner, facts, facts.or_off_gpu(_keep(copy)))}; {shares}"


def _container_fix(owner: LeakOwner, facts: Kept, moved: str) -> str:
    bound = (
        f"del {_as_written(owner)}[:-n]"
        if _must_stay_a_list(owner)
        else _BOUNDS.get(facts.container)
    )
    is_filled_by_reads = owner.kind == "defaultdict" and "defaultdict(" in owner.source
    if is_filled_by_reads:
        bound = f"{bound}; reading a missing key adds it: .get(key) does not"
    if bound is None:
        row = "cycle" if _leads_up(owner) else "container"
        return fix_of_class(row, owner.name) + moved
    conjunction = "," if moved else " or"
    return (
        f"limit {owner.name} ({bound}){conjunction} empty it once its entries have been used{moved}"
    )


def _as_written(owner: LeakOwner) -> str:
    """How the statement that fills it calls it: ``self.history`` where it is told as
    ``Trainer.history``.
    """
    written, _, _ = owner.source.partition(".append(")
    is_name = all(part.isidentifier() for part in written.split("."))
    return written if is_name and written != owner.source else owner.name


def _must_stay_a_list(owner: LeakOwner) -> bool:
    """Whether the program slices or sorts a list, pops from a place in it, or hands it to ``cat``,
    ``stack`` or a heap: a deque would break it.
    """
    module = read_source(owner.file) if owner.kind == "list" and owner.file else None
    if module is None:
        return False
    last = re.escape(owner.name.partition("[")[0].rpartition(".")[2])
    list_use = re.compile(
        rf"\b{last}(?:\[[^]]+\])?\[[^]]*:|\b(?:cat|stack|heap\w+)\([^)]*\b{last}\b"
        rf"|\b{last}\.(?:sort\(|pop\([^)])"
    )
    return any(map(list_use.search, module.lines))


def _hook_fix(keeper: Keeper | None, name: str) -> str:
    """For the statement that registers a hook: remove it by the handle, which it keeps or has to;
    for one in a hook that stores: store less.
    """
    call = statement_source(keeper).partition("#")[0].strip().removeprefix("return ").rstrip(";")
    registration = re.search(r"register_\w+", call)
    if registration is None:
        return fix_of_class("hook", name)
    kept_handle = _KEEPS_HANDLE.match(call)
    is_in_a_loop = keeper is not None and is_in_loop(keeper.file, keeper.line)
    if kept_handle and is_in_a_loop:
        only_last = f"{kept_handle[1]} is only the last one"
        return f"keep all handles of the loop in a list ({only_last}), {_REMOVE_EACH}"
    if kept_handle:
        return f"call {kept_handle[1]}.remove() {_NOT_NEEDED}"
    kept_handles = _KEEPS_HANDLES.match(call)
    if kept_handles:
        return f"call remove() of each handle in {kept_handles[1]} {_NOT_NEEDED}"
    is_whole = re.match(r"[\w.]+\(", call) and call.endswith(")") and len(call) <= _LONGEST_CALL
    if is_in_a_loop:
        how = f", handles.append({call})," if is_whole else ""
        return f"keep all handles of the loop in a list{how} {_REMOVE_EACH}"
    if is_whole:
        return f"keep the handle, handle = {call}, and call handle.remove() {_NOT_NEEDED}"
    kept = f"keep what {registration[0]} returns as handle"
    return f"{kept}, and call handle.remove() {_NOT_NEEDED}"


def _augmented(store: Store) -> str:
    """``total += loss.detach()`` for ``total += loss``."""
    if store.how != "add" or not isinstance(store.statement, ast.AugAssign) or store.value is None:
        return ""
    target, value = ast.unparse(store.statement.target), ast.unparse(store.value)
    if isinstance(store.value, (ast.BinOp, ast.Compare, ast.BoolOp, ast.Lambda)):
        value = f"({value})"
    text = f"{target} += {value}.detach()"
    return text if len(text) <= 80 else ""
