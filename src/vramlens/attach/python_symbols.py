"""Where Python's functions lie in another process, read from its memory: it may run from a file
that was replaced meanwhile, or lies in a container.

Only what the dynamic linker uses is read: the program headers, the dynamic section, the table of
symbols (System V ABI, chapter 5).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from vramlens.attach.thread_code import NEEDED_OF_LIBC

Reader = Callable[[int, int], bytes]
"""Gives bytes of the other process's memory: address, size."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOADED, _DYNAMIC = 1, 2
_STRINGS, _SYMBOLS, _STRINGS_SIZE, _GNU_HASH, _HASH = 5, 6, 10, 0x6FFFFEF5, 4
_MOST_SYMBOLS = 200_000
_MOST_BYTES = 1 << 24
_FUNCTION = 2
_SOUGHT = "Py_AddPendingCall"
_THREAD_LIBRARIES = ("libc.so", "libc-", "libpthread", "ld-musl")
_LIBC_NAMES = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-", "ld.so", "libc.musl", "[vdso]")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A range of addresses and the file behind it."""

    start: int
    end: int
    is_code: bool
    offset: int
    path: str

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return os.path.basename(self.path.removesuffix(" (deleted)"))


@dataclass(frozen=True)
class ElfFile:
    """What one loaded file exports.

    Attributes:
        addresses: of each exported function or variable, by name.
        sizes: bytes of each.
    """

    addresses: dict[str, int]
    sizes: dict[str, int]
    _starts: list[int] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        in_order = sorted((address, name) for name, address in self.addresses.items())
        self._starts.extend(address for address, _ in in_order)
        self._names.extend(name for _, name in in_order)

    def function_at(self, address: int) -> str | None:
        """The exported function that an address lies in; None where it lies in none."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        name = self._names[place]
        return name if address < self._starts[place] + self.sizes[name] else None


@dataclass(frozen=True)
class PythonImage:
    """The interpreter of another process.

    Attributes:
        elf: the file that holds it: the program itself, or libpython.
        python_code, libc_code: ranges of addresses of its code, and of the C library's and the
            linker's.
        syscall_instruction: the address of one.
        thread_functions: where the C library's functions that start a thread are, by name.
    """

    elf: ElfFile
    python_code: list[tuple[int, int]]
    libc_code: list[tuple[int, int]]
    syscall_instruction: int
    thread_functions: dict[str, int]


def mappings_of(pid: int) -> list[Mapping]:
    """The mappings of a process.

    Raises:
        OSError: they cannot be read.
    """
    mappings = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(None, 5)
            start, _, end = fields[0].partition("-")
            mapping = Mapping(
                start=int(start, 16),
                end=int(end, 16),
                is_code="x" in fields[1],
                offset=int(fields[2], 16),
                path=fields[5] if len(fields) == 6 else "",
            )
            mappings.append(mapping)
    return mappings


def python_image(mappings: Iterable[Mapping], read: Reader) -> PythonImage | None:
    """The interpreter among what a process has loaded; None where there is none."""
    mappings = list(mappings)
    for path in _candidates(mappings):
        elf = _exports(_base_of(mappings, path), read)
        if elf is None or _SOUGHT not in elf.addresses:
            continue
        libc_code = _code_of(m for m in mappings if m.name.startswith(_LIBC_NAMES))
        instruction = _syscall_instruction(libc_code, read)
        if instruction is None:
            return None
        return PythonImage(
            elf=elf,
            python_code=_code_of(m for m in mappings if m.path == path),
            libc_code=libc_code,
            syscall_instruction=instruction,
            thread_functions=_thread_functions(mappings, read),
        )
    return None


def _code_of(mappings: Iterable[Mapping]) -> list[tuple[int, int]]:
    return [(mapping.start, mapping.end) for mapping in mappings if mapping.is_code]


def _thread_functions(mappings: list[Mapping], read: Reader) -> dict[str, int]:
    """The C library's functions that start a thread; older ones have them in libpthread."""
    addresses: dict[str, int] = {}
    paths = dict.fromkeys(
        mapping.path for mapping in mappings if mapping.name.startswith(_THREAD_LIBRARIES)
    )
    for path in paths:
        elf = _exports(_base_of(mappings, path), read)
        if elf is not None:
            addresses |= {
                name: elf.addresses[name] for name in NEEDED_OF_LIBC if name in elf.addresses
            }
    return addresses


def _candidates(mappings: list[Mapping]) -> Iterator[str]:
    """Files that may hold an interpreter, the likely ones first."""
    paths = dict.fromkeys(mapping.path for mapping in mappings if mapping.path.startswith("/"))
    yield from (path for path in paths if os.path.basename(path).startswith("libpython3"))
    first = next(iter(paths), None)  # the program itself is mapped lowest or first
    if first is not None:
        yield first
    yield from (path for path in paths if os.path.basename(path).startswith("python"))


def _base_of(mappings: list[Mapping], path: str) -> int:
    return min(mapping.start - mapping.offset for mapping in mappings if mapping.path == path)


def _exports(base: int, read: Reader) -> ElfFile | None:
    """What a loaded file exports; None where it is not a 64-bit file, or is damaged."""
    try:
        dynamic, bias = _dynamic_section(base, read)
        return None if dynamic is None else _symbols(dynamic, bias, read)
    except (OSError, struct.error, KeyError, OverflowError):
        return None


def _dynamic_section(base: int, read: Reader) -> tuple[dict[int, int] | None, int]:
    """The dynamic section by tag, and what is to be added to the file's addresses."""
    header = _HEADER.unpack(read(base, _HEADER.size))
    if header[0][:5] != b"\x7fELF\x02":
        return None, 0
    bias: int | None = None
    place: tuple[int, int] | None = None
    for number in range(header[10]):
        kind, _, offset, address, _, _, size, _ = _PROGRAM_HEADER.unpack(
            read(base + header[5] + number * header[9], _PROGRAM_HEADER.size)
        )
        if kind == _LOADED and offset == 0:
            bias = base - address
        elif kind == _DYNAMIC:
            place = address, size
    if bias is None or place is None or place[1] > _MOST_BYTES:
        return None, 0
    raw = read(bias + place[0], place[1])
    used_bytes = len(raw) // _DYNAMIC_ENTRY.size * _DYNAMIC_ENTRY.size
    return dict(_DYNAMIC_ENTRY.iter_unpack(raw[:used_bytes])), bias


def _symbols(dynamic: dict[int, int], bias: int, read: Reader) -> ElfFile:
    def placed(tag: int) -> int:
        address = dynamic[tag]  # glibc has put the bias in already, musl has not
        return address if address >= bias else address + bias

    count = _symbol_count(dynamic, placed, read)
    strings = read(placed(_STRINGS), min(dynamic[_STRINGS_SIZE], _MOST_BYTES))
    table = read(placed(_SYMBOLS), count * _SYMBOL.size)
    addresses, sizes = {}, {}
    used_bytes = len(table) // _SYMBOL.size * _SYMBOL.size
    for name_at, _, _, section, value, size in _SYMBOL.iter_unpack(table[:used_bytes]):
        if not section or not value:
            continue
        name = strings[name_at : strings.find(b"\0", name_at)].decode("latin-1")
        addresses[name] = bias + value
        sizes[name] = size
    return ElfFile(addresses, sizes)


def _symbol_count(dynamic: dict[int, int], placed: Callable[[int], int], read: Reader) -> int:
    """How many symbols there are; the hash tables alone say."""
    if _HASH in dynamic:
        return int(min(struct.unpack("<II", read(placed(_HASH), 8))[1], _MOST_SYMBOLS))
    at = placed(_GNU_HASH)
    buckets, first, bloom_words, _ = struct.unpack("<IIII", read(at, 16))
    bucket_at = at + 16 + 8 * bloom_words
    starts = struct.unpack(f"<{buckets}I", read(bucket_at, 4 * buckets))
    last = int(max(starts))
    if last < first:
        return int(first)
    chain_at = bucket_at + 4 * buckets
    while last < _MOST_SYMBOLS:
        (entry,) = struct.unpack("<I", read(chain_at + 4 * (last - first), 4))
        last += 1
        if entry & 1:
            break
    return last


def _syscall_instruction(code: list[tuple[int, int]], read: Reader) -> int | None:
    """The address of a ``syscall`` instruction in some code."""
    for start, end in code:
        try:
            place = read(start, min(end - start, _MOST_BYTES)).find(b"\x0f\x05")
        except OSError:  # the vdso of some kernels
            continue
        if place >= 0:
            return start + place
    return None
