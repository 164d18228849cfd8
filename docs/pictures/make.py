"""Draws docs/pictures/explain.svg: what `vramlens explain` prints for the recording that ships with the package."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vramlens import api
from vramlens.report.text import render

path = Path(__file__).with_name("explain.svg")
console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True)
console.print("[bold]$ vramlens explain snapshot.pickle[/bold]")
explanation = api.explain(api.example_path())
explanation = replace(explanation, recording=replace(explanation.recording, source="snapshot.pickle"))
render(explanation, console, "line", None)
path.write_text(console.export_svg(title="vramlens"), encoding="utf-8")
