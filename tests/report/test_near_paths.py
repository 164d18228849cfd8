"""One form of a path in an answer."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.report.document import Claim, Claims, Command, Document, Heading, Sentences
from vramlens.report.holders import HeldMemory, HolderRow
from vramlens.report.text import near, print_document


def test_sentences_and_tables_name_a_file_below_the_working_directory_in_one_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / "lib" / "net.py")
    claim = Claim(f"grows at {file}:7", (f"requested inside of ({file}:9)",), f"edit {file}:7")
    place = Place(file, 7, "forward")
    row = HolderRow(name=str(place), place=place, bytes=1 << 20, allocations=1)
    document = Document(
        (
            Sentences((f"in {file}:7.",)),
            HeldMemory(title="1.00 MiB", by="line", total_bytes=1 << 20, rows=(row,), rest=None),
            Claims((claim,), ""),
            Command("look", (f"vramlens explain {tmp_path}/run.vram",)),
        )
    )
    console = Console(file=io.StringIO(), width=200)
    print_document(document, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("lib/net.py:") == 5
    assert text.count(str(tmp_path)) == 1, "a command to paste stays as it is"


def test_other_paths_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    texts = (f"{tmp_path}other/a.py:1", f"/mnt{tmp_path}/a.py:1", "/opt/a.py:1")
    document = Document((Heading(Verdict.PROVEN), Sentences(texts)))
    assert near(document) == document
    assert near(document).parts[0].text is Verdict.PROVEN  # type: ignore[attr-defined]


def test_a_root_and_a_lost_folder_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = Document((Sentences(("/opt/a.py:1",)),))
    monkeypatch.chdir("/")
    assert near(document) == document
    lost = tmp_path / "lost"
    lost.mkdir()
    monkeypatch.chdir(lost)
    os.rmdir(lost)
    assert near(document) == document
