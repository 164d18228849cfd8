"""What to do about a leak, by class: one sentence for each, wherever the leak was found."""

from __future__ import annotations

FIXES = {
    "graph": "keep detached tensors (.detach()) there, which frees the graph behind them",
    "container": "free what {name} no longer needs once it has been used: empty it, or set it to"
    " None",
    "hook": "empty {name} in each step and keep detached values only (.detach()); or remove the"
    " hook: handle = ...register_..._hook(...), then handle.remove()",
    "lru_cache": "give it a limit, @lru_cache(maxsize=...), or call {function}.cache_clear() "
    "when its keys are done; do not use a tensor or a module as a key",
    "cache": "give {name} a limit on its keys, or delete each key after its last use",
    "exception": "keep repr(error) instead of the exception in {name}, or clear its traceback"
    " (error.with_traceback(None)), which holds every variable of its frames",
    "exit_stack": "enter each context where it is used, in a with statement of its own: what {name}"
    " enters stays until the stack is closed",
    "closure": "do not let the functions in {name} capture tensors, or remove them when they "
    "are done",
    "thread": "empty {name} when the thread's task ends: a thread's variables live as long as the"
    " thread",
    "waiting_threads": "let {name}() return once nobody needs it, by a timeout or an event: its threads wait, and"
    " a thread's variables live as long as the thread",
    "autograd_cycle": "compute second derivatives with torch.autograd.grad(..., create_graph=True),"
    " or set p.grad = None after use; on ctx, use save_for_backward",
    "cycle": "make {name} a weak reference (weakref.ref), or set it to None when done",
    "cycle_forward": "set {name} to None when done; a weak reference does only where something else"
    " holds what it refers to",
    "cycle_unwritten": "call gc.collect() every so many steps: no statement of the program closes"
    " this cycle",
    "other": "clear {name} when it is no longer used",
    "hidden": "look for C++ code that keeps tensors; for tensors sent to other processes, let "
    "the receiver delete them and call torch.cuda.ipc_collect()",
    "autocast": "enter torch.autocast again in each step, or use torch.autocast(..., "
    "cache_enabled=False)",
    "pinned": "copy into one pinned buffer that is allocated once, or lower the loader's "
    "prefetch_factor or num_workers",
    "waiting": "let the streams wait for each other (stream.wait_stream) and free the tensor "
    "after that, instead of tensor.record_stream(stream)",
    "stream": "create the stream once, before the loop: memory freed on one stream cannot be "
    "used by another",
    "pool": "let graphs that run one after the other share one pool (pool=graph.pool()), capture fewer shapes (pad"
    " them), and call graph.reset() on graphs that are done",
    "external": "create process groups, communicators and library handles once, not in every step",
    "context": "call torch.cuda.set_device(rank) before anything else touches a GPU, and"
    " torch.load(..., map_location=...)",
}
"""By class; of some classes there are kinds that need another edit: an ``lru_cache``, what C++
keeps (``hidden``), autocast's copies, blocks that wait for a stream, cycles whose edge does not lead
back to what holds the object, or is a library's.
"""


def fix_of_class(kind: str, name: str = "") -> str:
    """The edit for a class of leaks, or for a kind of one.

    Args:
        name: what keeps it, as the program calls it.
    """
    function = name.removesuffix(" (lru_cache)")
    return FIXES.get(kind, FIXES["other"]).format(name=name, function=function)
