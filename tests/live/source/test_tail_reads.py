"""Stores of which the program reads the last few entries, or none."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from vramlens.live.source.source_stores import Store, read_source
from vramlens.live.source.tail_reads import reads_of_end_only

LOG = """\
class Log:
    rows = []

    def add(self, row):
        self.rows.append(row)

    def read(self, n, other):
        {read}
"""


def appended(folder: Path, text: str, name: str = "rows") -> Store:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    module = read_source(str(path))
    assert module is not None
    return next(store for store in module.stores[name] if store.method == "append")


@pytest.mark.parametrize(
    "read",
    [
        "return self.rows[-1]",
        "return self.rows[-1] - self.rows[-2]",
        "return self.rows[-n:]",
        "return self.rows[-len(other):]",
        "return self.rows[-n:-1][0]",
        "return self.rows[len(self.rows) - 1]",
        "return [self.rows[-i] for i in range(1, 4)]",
        "return [self.rows[-i] for i in range(1, min(n, len(self.rows)) + 1)]",
        "return self.rows[-1] if self.rows else None",
        "return None if not self.rows or len(self.rows) < 2 else self.rows[-1].mean()",
    ],
)
def test_only_the_end_is_read(tmp_path: Path, read: str) -> None:
    store = appended(tmp_path, LOG.format(read=read))
    assert reads_of_end_only(store) == (
        "only its last entries are read (line 8): the rest is kept for nothing"
    )


def test_nothing_is_read(tmp_path: Path) -> None:
    store = appended(tmp_path, LOG.format(read="return len(self.rows)"))
    assert reads_of_end_only(store) == "nothing reads its entries"


@pytest.mark.parametrize(
    "read",
    [
        "return self.rows[0]",
        "return self.rows[n]",
        "return self.rows[:n]",
        "return self.rows[-n::-1]",
        "return self.rows[-1:0:-1]",
        "return self.rows[-len(self.rows):]",
        "return [self.rows[-i] for i in range(1, len(self.rows) + 1)]",
        "return [self.rows[-i] for i in other]",
        "return self.rows",
        "return list(self.rows)",
        "return other.stack(self.rows)",
        "yield from self.rows",
        "other.all = self.rows",
        "return [row for row in self.rows]",
        "return self.rows == other",
        "self.rows.clear()",
        "del self.rows[0]",
        "return getattr(self, 'rows')",
        "return vars(self)",
        "other.dump(self.__dict__)",
        "return self.rows[-1] + other.rows.pop()",
    ],
)
def test_others_may_be_read(tmp_path: Path, read: str) -> None:
    assert not reads_of_end_only(appended(tmp_path, LOG.format(read=read)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kept = []\ndef add(x):\n    kept.append(x)\n    return kept[-5:]\n", "line 4"),
        ("def add(x, kept=[]):\n    kept.append(x)\n    return kept[-1]\n", "line 3"),
        ("kept = []\ndef add(x):\n    kept.append(x)\nsave(kept)\n", ""),
    ],
)
def test_variables(tmp_path: Path, text: str, told: str) -> None:
    assert told in reads_of_end_only(appended(tmp_path, text, "kept"))


@pytest.mark.parametrize(
    "statement", ["rows[key].append(x)", "rows.setdefault(key, []).append(x)", "log().append(x)"]
)
def test_what_is_not_one_list_is_not_told(tmp_path: Path, statement: str) -> None:
    name = "log()" if "log" in statement else "rows"
    store = appended(tmp_path, f"def add(rows, key, x, log):\n    {statement}\n", name)
    assert not reads_of_end_only(store)
