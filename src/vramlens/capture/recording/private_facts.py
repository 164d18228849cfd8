"""Facts of this machine, user and run that a redacted recording must not tell."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from vramlens.ground.place import PACKAGES

_SHORTEST_FOLDER, _SHORTEST_WORD = 4, 3
_SHORTEST_ARGUMENT = 4
"""What is shorter says nothing, and stands everywhere: 1e-3, cpu."""
_EVERYBODYS = {"root", "user", "nobody", "localhost", "home", "tmp"}
_LIBRARIES = re.compile(rf"[/\\](?:{PACKAGES}|lib[/\\]python3\.\d+|python3\d+\.zip)")
_MOST_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class PrivateFacts:
    """The facts that must go.

    Attributes:
        folders: whole paths, the longest first, each with what stands for it.
        words: by what they are ("user name", "host name", "argument"), texts that stand by
            themselves.
        local_folders: folders in the present one whose names have a space, which tells nobody where
            such a path begins.
    """

    folders: tuple[tuple[str, str], ...]
    words: tuple[tuple[str, str], ...]
    local_folders: tuple[str, ...]

    def with_more(self, other: PrivateFacts) -> PrivateFacts:
        """Both together."""
        return PrivateFacts(
            _longest_first(dict((*other.folders, *self.folders))),
            _longest_first(dict((*other.words, *self.words))),
            tuple(sorted({*self.local_folders, *other.local_folders}, key=len, reverse=True)),
        )


def private_facts(command: Sequence[str] = ()) -> PrivateFacts:
    """The facts that must go from a recording of this process.

    Args:
        command: the program's, where it is not the interpreter's own.
    """
    arguments = [*sys.orig_argv, *getattr(sys, "argv", ()), *command]
    folders: dict[str, str] = {}
    for path in _homes():
        folders.setdefault(path, "~")
    present = _present_folder()
    for path in (*present, *_folders_of(arguments), *filter(os.path.isabs, sys.path)):
        if len(path) >= _SHORTEST_FOLDER and not _LIBRARIES.search(path):
            folders.setdefault(path, ".")
    words: dict[str, str] = {}
    for word in _users():
        words.setdefault(word, "user name")
    for word in _hosts():
        words.setdefault(word, "host name")
    for word in _argument_words(arguments):
        words.setdefault(word, "argument")
    spaced = tuple(sorted(_names_with_spaces(present), key=len, reverse=True))
    return PrivateFacts(_longest_first(folders), _longest_first(words), spaced)


def is_short(folder: str) -> bool:
    """True where a folder is one below the root: its name may also be that of a folder deep in a
    library.
    """
    return folder.count("/") + folder.count("\\") == 1


def _longest_first(texts: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(texts.items(), key=lambda pair: -len(pair[0])))


def _homes() -> Iterator[str]:
    homes = [os.path.expanduser("~"), os.environ.get("HOME", "")]
    with contextlib.suppress(ImportError, KeyError, OSError):
        import pwd

        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    yield from _with_targets(homes)


def _present_folder() -> list[str]:
    with contextlib.suppress(OSError):  # programs remove the folder that they are in
        return list(_with_targets([os.getcwd(), os.environ.get("PWD", "")]))
    return []


def _with_targets(paths: Iterable[str]) -> Iterator[str]:
    """Absolute paths, and what they are links to."""
    for path in paths:
        if os.path.isabs(path):
            for name in (path.rstrip("/\\"), os.path.realpath(path)):
                if len(name) >= _SHORTEST_FOLDER and name not in ("/tmp", "/usr", "/opt"):
                    yield name


def _folders_of(arguments: Iterable[str]) -> Iterator[str]:
    for argument in arguments:
        path = argument.partition("=")[2] if argument.startswith("-") else argument
        path = os.path.expanduser(path)
        folder = path if path.endswith(("/", "\\")) else os.path.dirname(path)
        if os.path.isabs(folder):
            yield from _with_targets([folder])


def _users() -> Iterator[str]:
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")]
    with contextlib.suppress(ImportError, KeyError, OSError):
        import pwd

        users.append(pwd.getpwuid(os.getuid()).pw_name)
    yield from _worth_hiding(users, _SHORTEST_WORD)


def _hosts() -> Iterator[str]:
    hosts = [os.environ.get("HOSTNAME", "")]
    with contextlib.suppress(OSError):
        hosts.append(socket.gethostname())
    yield from _worth_hiding(
        [part for host in hosts for part in (host, host.partition(".")[0])], _SHORTEST_WORD
    )


def _argument_words(arguments: Sequence[str]) -> Iterator[str]:
    """Arguments and their values; the program's own name stays, as the names of files do."""
    programs = {os.path.basename(path) for path in (*arguments[:1], sys.executable or "")}
    values = (argument.partition("=")[2] for argument in arguments)
    words = chain.from_iterable(zip(arguments, values, strict=True))
    for word in _worth_hiding(words, _SHORTEST_ARGUMENT):
        is_program = word.endswith((".py", ".pyw")) or os.path.basename(word) in programs
        if not is_program and word not in _OWN_WORDS:
            yield word


_OWN_WORDS = {
    "vramlens",
    "python",
    "torchrun",
    "predict",
    "--redact",
    "--leaks",
    "--steps",
    "--every",
    "--gpu",
    "--cards",
    "--conf",
    "--torch",
    "--batch",
    "--world-size",
    "--rank",
    "--patience",
    "--output",
    "-mvramlens",
}


def _worth_hiding(words: Iterable[str], shortest: int) -> Iterator[str]:
    for word in words:
        if (
            len(word) >= shortest
            and word not in _EVERYBODYS
            and not _is_number(word)
            and word.strip()
        ):
            yield word


def _is_number(word: str) -> bool:
    with contextlib.suppress(ValueError):
        float(word)
        return True
    return False


def _names_with_spaces(folders: Iterable[str]) -> Iterator[str]:
    for folder in list(folders)[:1]:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
                if " " in entry.name and entry.is_dir():
                    yield entry.name
