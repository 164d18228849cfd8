"""Claims to storages: each says what a storage is called; the first of the first kind wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vramlens.capture.names.live_heap import LiveHeap, TensorStorage

_KINDS = ("parameter", "buffer", "gradient", "optimizer_state", "tensor")
"""The kinds of names, the first wins."""
GRADIENT_FORM = "grad[{}]"
"""The form of a gradient's name; ``{}`` is its parameter's."""

Claim = Callable[..., None]
"""``claim(tensor, subject, kind, form="{}")``: see ``StorageClaims.add``."""


@dataclass(slots=True)
class StorageName:
    """A storage's name so far: its first claim, and where other claims of the same kind begin."""

    size_bytes: int
    start: int
    subject: str
    kind: str
    form: str
    other_starts: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name with how many more share the storage."""
        more = f" and {len(self.other_starts)} more" if self.other_starts else ""
        return self.form.replace("{}", self.subject + more, 1)

    def share_with(self, claim: StorageName) -> None:
        """Counts another claim to the same storage, where it is of the same kind."""
        is_same_kind = claim.kind == self.kind and claim.form == self.form
        is_counted = claim.subject == self.subject or "(flat parameter" in self.subject
        if is_same_kind and not is_counted and claim.start != self.start:
            self.other_starts.add(claim.start)


class StorageClaims:
    """The names of storages.

    Attributes:
        names: by device and address.
    """

    def __init__(self, heap: LiveHeap) -> None:
        self._heap = heap
        self._waiting: list[tuple[tuple[int, int], StorageName]] = []
        self.names: dict[tuple[int, int], StorageName] = {}

    def add(self, tensor: Any, subject: str, kind: str, form: str = "{}") -> None:
        """Claims all storages that a tensor keeps; ``form`` says how the name is made from the
        subject.
        """
        if tensor is None:
            return
        for suffix, storage in self._heap.storages(tensor):
            self.add_storage(storage, subject + suffix, kind, form)

    def add_storage(
        self, storage: TensorStorage, subject: str, kind: str, form: str = "{}"
    ) -> None:
        """Claims one storage."""
        claim = StorageName(
            size_bytes=storage.size_bytes,
            start=storage.offset,
            subject=subject,
            kind=kind,
            form=form,
        )
        self._waiting.append(((storage.device, storage.address), claim))

    def settle(self) -> None:
        """Decides between the claims that were made since."""
        for place, claim in sorted(self._waiting, key=lambda entry: _KINDS.index(entry[1].kind)):
            self.names.setdefault(place, claim).share_with(claim)
        self._waiting.clear()

    @property
    def named_bytes(self) -> int:
        """The size of all storages that have a name."""
        return sum(name.size_bytes for name in self.names.values())
