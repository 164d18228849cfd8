"""What a program finds around itself when it is done: printed the same with and without vramlens.

Copied beside each program. Only what a program can notice is in it; what is vramlens's own (its
sockets, its handler of SIGUSR2, the variable for spawned children) is left out.
"""

import gc
import locale
import os
import random
import signal
import sys
import threading
import warnings

_OURS = ("VRAMLENS_PLAN", "PYTHONPATH")


def _descriptors():
    """What each open descriptor is, but for vramlens's own sockets."""
    session = sys.modules.get("vramlens.capture.recording.session")
    own = set()
    if session is not None and session.current_session() is not None:
        control = session.current_session()._dump_server
        own = {
            end.descriptor
            for end in (control._listener, *(control._wake_ends or ()))
            if end is not None
        }
    kinds = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        # Debian's libffi keeps itself open once somebody imports ctypes.
        is_of_ctypes = os.path.basename(target).startswith("libffi")
        if int(name) not in own and "/proc/" not in target and not is_of_ctypes:
            kinds.append(os.path.basename(target.partition(":[")[0]))
    return sorted(kinds)


def _tracer():
    """What traces the program; while --leaks watches a step line by line, that is vramlens."""
    tracer = sys.gettrace()
    return None if type(tracer).__module__.startswith("vramlens.") else tracer


def tell(file=None):
    """Prints it."""
    handlers = [
        signal.getsignal(number)
        for number in sorted(set(signal.valid_signals()) - {signal.SIGUSR2})
    ]
    facts = {
        "random": random.random(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": _descriptors(),
        "handlers": [
            handler if type(handler) is int else getattr(handler, "name", "own")
            for handler in handlers
        ],
        "collector": (
            gc.isenabled(),
            gc.get_threshold(),
            gc.get_debug(),
            len(gc.garbage),
            gc.get_freeze_count(),
        ),
        "interpreter": (
            sys.getswitchinterval(),
            sys.getrecursionlimit(),
            _tracer(),
            sys.getprofile(),
        ),
        "hooks": (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__),
        "names": (
            sys.argv,
            os.path.basename(sys.path[0]),
            sys.flags.dev_mode,
            sys.dont_write_bytecode,
        ),
        "main": sorted(name for name in sys.modules["__main__"].__dict__ if name.startswith("__")),
        "surroundings": (
            locale.setlocale(locale.LC_ALL),
            sys.getfilesystemencoding(),
            os.umask(os.umask(0o22)) and "",
        ),
        "variables": sorted(name for name in os.environ if name not in _OURS),
        "filters": len(warnings.filters),
    }
    torch = sys.modules.get("torch")
    if hasattr(torch, "rand") and torch.initial_seed() < 1 << 32:  # the program has seeded it
        facts["torch"] = torch.rand(1).item()
    for name, value in facts.items():
        print("after:", name, value, file=file, flush=True)
