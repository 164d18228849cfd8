"""The text that a foreign interpreter runs: it starts a thread, and nothing else.

It uses only what is built in until it has found that somebody still waits for it: the socket is
gone as soon as the caller has given up, and whoever is late then leaves without a trace.
"""

from __future__ import annotations

_SOURCE = """
def begin():
    import _thread
    start = _thread.start_new_thread
    if type(start) is not type(len):
        import sys
        start = sys.modules["gevent.monkey"].get_original("_thread", "start_new_thread")
    start(come, (_thread.get_native_id(),))

def come(starter):
    import _signal, _socket
    if hasattr(_signal, "pthread_sigmask"):  # else it would take what the program waits for
        faults = ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")
        faults = {getattr(_signal, "SIG" + name, 0) for name in faults}
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - faults)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(5.0)
        connection.connect(ADDRESS)
    except OSError:
        return connection.close()
    try:
        serve(connection, starter)
    except BaseException as error:
        import json
        text = type(error).__name__ + ": " + str(error)
        line = json.dumps({"kind": "error", "text": text[:2000]}).encode() + bytes([10])
        try:
            connection.sendall(line)
        except OSError:
            pass
    finally:
        connection.close()

def serve(connection, starter):
    import sys
    if sys.version_info < (3, 10):
        raise RuntimeError("it runs Python " + sys.version.split()[0] + "; attach needs 3.10")
    is_new = "vramlens" not in sys.modules
    if not is_new:  # modules of another version do not fit to those that are there
        found = getattr(sys.modules["vramlens"], "__version__", "of another version")
        if found != VERSION:
            raise RuntimeError("vramlens " + found + " is in it already: attach with that one")
    import marshal
    with open(SOURCES, "rb") as file:
        sources = marshal.loads(file.read())
    names = {"__name__": "vramlens_attach"}
    for name in ("vramlens.capture.process.own_thread", "vramlens.attach.inside.gentle_imports"):
        exec(sources[name][1], names)
    stays, paused_s = False, []
    try:
        with names["GentleImports"](PACKAGE, sources, names["wait"]) as imports:
            import importlib
            with imports.resting(paused_s.append):
                agent = importlib.import_module("vramlens.attach.inside.agent")
            stays = agent.serve(connection, starter, imports, paused_s)
    finally:
        if is_new and not stays:
            for name in list(sys.modules):
                if name == "vramlens" or name.startswith("vramlens."):
                    del sys.modules[name]

try:
    begin()
except KeyboardInterrupt:
    import _thread
    _thread.interrupt_main()
except BaseException:
    pass
"""


def bootstrap_text(address: str, package: str, sources: str, version: str) -> bytes:
    """The text to be run, one statement that puts no name into the program's ``__main__``.

    Args:
        address: the path of the socket, as the program sees it.
        package: the folder of the package ``vramlens``, as the program sees it.
        sources: the file of ``sent_sources``, as the program sees it.
        version: of that package.
    """
    names = {
        "__name__": "vramlens_attach",
        "ADDRESS": address,
        "PACKAGE": package,
        "SOURCES": sources,
        "VERSION": version,
    }
    return f"__import__('builtins').exec({_SOURCE!r}, {names!r})\n".encode(
        "ascii", "backslashreplace"
    )
