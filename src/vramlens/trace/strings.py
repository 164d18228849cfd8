"""Interned text: a recording names each file, function and region once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NO_TEXT = 0xFFFFFFFF


class Strings:
    """Texts by id, decoded when asked for; bytes that are not UTF-8 are replaced."""

    def __init__(self, characters: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        self._characters = characters
        self._starts = starts
        self._decoded: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._starts) - 1

    def with_texts(self, texts: Sequence[str]) -> Strings:
        """The same texts, and some more behind them."""
        encoded = [text.encode(errors="replace") for text in texts]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.uint64)
        characters = np.frombuffer(b"".join(encoded), np.uint8)
        return Strings(
            np.append(self._characters[: int(self._starts[-1])], characters),
            np.append(self._starts, self._starts[-1] + ends),
        )

    def __getitem__(self, text: int) -> str:
        """The text of an id; the empty text for NO_TEXT."""
        if text == NO_TEXT:
            return ""
        decoded = self._decoded.get(text)
        if decoded is None:
            first, end = int(self._starts[text]), int(self._starts[text + 1])
            decoded = self._decoded[text] = (
                self._characters[first:end].tobytes().decode(errors="replace")
            )
        return decoded
