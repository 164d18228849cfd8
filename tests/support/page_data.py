"""A second reader of a page's data, one number at a time: what the tests hold the pages against."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any


class PageData:
    """The header of a container, and its columns by number."""

    def __init__(self, data: bytes) -> None:
        assert data[:8] == b"vramview"
        length = int.from_bytes(data[8:12], "little")
        self.header: dict[str, Any] = json.loads(zlib.decompress(data[12 : 12 + length]))
        self._chunks = data[12 + length :]

    def column(self, number: int) -> list[int]:
        info = self.header["columns"][number]
        chunk = self.header["chunks"][info["chunk"]]
        count = info["n"]
        end = info["from"] + count * info["planes"]
        inflated = zlib.decompress(self._chunks[chunk["at"] : chunk["at"] + chunk["size"]])
        planes = inflated[info["from"] : end]
        assert len(planes) == count * info["planes"]
        parts = [planes[plane * count : (plane + 1) * count] for plane in range(info["planes"])]
        found = [int.from_bytes(bytes(value), "little") for value in zip(*parts, strict=True)]
        if info["delta"]:
            before = 0
            for i, value in enumerate(found):
                before += -(value + 1) // 2 if value % 2 else value // 2
                found[i] = before
        assert max(found, default=0) == info["max"]
        return found


def data_in(page: str) -> bytes:
    """The data block of a one-file page."""
    block = re.search(
        r'<script type="application/octet-stream" id="data">([A-Za-z0-9+/=]*)</script>', page
    )
    assert block is not None
    return base64.b64decode(block[1])
