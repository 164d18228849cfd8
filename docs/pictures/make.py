"""Draws the pictures of the README from real recordings."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vramlens import api
from vramlens.report.forms import document_of
from vramlens.report.text import print_document

HERE = Path(__file__).parent
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich's, which is loaded from elsewhere


def draw(name: str, recording: Path, source: str, before: str, after: str = "") -> None:
    """Draws what is printed about a recording, with plain lines before and after."""
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True)
    command, _, rest = before.partition("\n")
    console.print(f"[bold]$ {command}[/bold]")
    if rest:
        console.print(rest, highlight=False, markup=False)
    explanation = api.explain(recording)
    shown = replace(explanation, recording=replace(explanation.recording, source=source))
    print_document(document_of(shown), console)
    if after:
        console.print(after, highlight=False, markup=False)
    picture = _FONT.sub("", console.export_svg(title="vramlens"))
    (HERE / name).write_text(picture, encoding="utf-8")


draw(
    "run.svg",
    api.example_path(),
    "oom.vram",
    "vramlens run -o oom.vram finetune.py\n"
    "Traceback (most recent call last):\n  …\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. …",
    "vramlens: recording of this failure: oom.vram",
)
