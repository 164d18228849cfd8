"""Times the viewer against the page of PyTorch's ``_memory_viz.py trace_plot``, on one recording,
in one run.

    python benchmarks/view.py million.pickle [--rounds N] [--conf SETTINGS]... [--memory-viz FOLDER]
    [--serve]

Needs Node and ``npm ci`` in ``viewer/``, and a Chromium (``VRAMLENS_CHROMIUM``, default
/usr/bin/chromium). Writing is timed as whole processes; the browser is headless and has no GPU.
PyTorch's page loads its script from two content
networks: ``--memory-viz`` is a folder that has ``MemoryViz.js`` and the modules that it imports
(``d3.js``, ...), and without it that page is written and not opened. ``--serve`` opens the local
page instead of the file. The stages are
those without settings. Prints one JSON object: medians over the rounds, which take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "viewer" / "tests" / "bench.mjs"


def timed(command: list[str], **options: Any) -> float:
    """Seconds from starting a process until it has ended."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, **options)
    return time.perf_counter() - start


def browse(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        ["node", str(BENCH), *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=BENCH.parent,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def stages(recording: str) -> dict[str, float]:
    """Seconds of each stage within one process, after the imports."""
    code = (
        "import json, sys, time\n"
        "from vramlens import api\n"
        "from vramlens.view.page import data_of, one_file, title_of\n"
        "t = [time.perf_counter()]\n"
        "traces = [api.load(sys.argv[1])]; t.append(time.perf_counter())\n"
        "data = data_of(traces); t.append(time.perf_counter())\n"
        "page = one_file(data, title_of(traces)); t.append(time.perf_counter())\n"
        "print(json.dumps({'read_s': t[1] - t[0], 'explain_and_pack_s': t[2] - t[1], 'page_s': t[3] - t[2]}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, recording], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def served(recording: str, settings: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "vramlens", "view", recording, "--no-browser", *settings]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            return browse("ours", server.stdout.readline().strip())
        finally:
            server.terminate()


def median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in rows[0] if all(row.get(name) is not None for row in rows)]
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recording")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="SETTINGS",
        help="draw a replayed setting, too",
    )
    parser.add_argument("--memory-viz", metavar="FOLDER")
    parser.add_argument("--serve", action="store_true")
    asked = parser.parse_args()
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    settings = [f"--conf={conf}" for conf in asked.conf]
    with tempfile.TemporaryDirectory() as folder:
        page, plot = os.path.join(folder, "page.html"), os.path.join(folder, "plot.html")
        for _ in range(asked.rounds):
            row: dict[str, Any] = {
                "written_s": timed(
                    [
                        sys.executable,
                        "-m",
                        "vramlens",
                        "view",
                        asked.recording,
                        "-o",
                        page,
                        "--no-sources",
                        *settings,
                    ]
                ),
                **stages(asked.recording),
                "bytes": os.path.getsize(page),
            }
            ours.append(
                row | (served(asked.recording, settings) if asked.serve else browse("ours", page))
            )
            try:
                written = timed(
                    [
                        sys.executable,
                        "-m",
                        "torch.cuda._memory_viz",
                        "trace_plot",
                        asked.recording,
                        "-o",
                        plot,
                    ]
                )
            except subprocess.CalledProcessError:  # no PyTorch here
                continue
            row = {"written_s": written, "bytes": os.path.getsize(plot)}
            theirs.append(
                row | (browse("trace_plot", plot, asked.memory_viz) if asked.memory_viz else {})
            )
    print(
        json.dumps(
            {"vramlens": median(ours), "trace_plot": median(theirs) if theirs else None}, indent=2
        )
    )


if __name__ == "__main__":
    main()
