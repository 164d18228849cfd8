"""What a JSON text would take as Python objects, told before it is read: ``[]`` has two bytes,
its list 56 and more.
"""

from __future__ import annotations

_DICT_BYTES, _LIST_BYTES, _ITEM_BYTES = 240, 64, 40
_ALWAYS_ALLOWED_BYTES, _TIMES_THE_TEXT = 48_000_000, 4


def refuse_costly(text: bytes) -> None:
    """Lets a text pass whose objects take no more than what real ones do for its length.

    Raises:
        ValueError: they would take more.
    """
    cost = (
        len(text)
        + _DICT_BYTES * text.count(b"{")
        + _LIST_BYTES * text.count(b"[")
        + _ITEM_BYTES * text.count(b",")
    )
    if cost > _ALWAYS_ALLOWED_BYTES + _TIMES_THE_TEXT * len(text):
        raise ValueError(
            f"it would take {cost / 1e6:,.0f} MB, more than {len(text):,} bytes of a real file need"
        )
