"""Failures predicted without a GPU beside those that were recorded on one, of the same programs.

python failures.py PROGRAMS RECORDINGS [-o ROWS.json]

PROGRAMS is a folder of scripts, each of which limits itself with set_per_process_memory_fraction; RECORDINGS has
SCRIPT.vram of each, as ``vramlens run`` wrote it when memory ran out on a GPU. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_LIMITS = frozenset({"process_limit"})
"""Advice to raise a limit is no advice on the program."""
_PROCESSES = 2


def answer_of(*words: str) -> Any:
    """What a verb of vramlens says, as JSON; None where it fails."""
    command = [sys.executable, "-m", "vramlens", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def facts_of(explanation: Any) -> dict[str, Any] | None:
    """Of an explained failure, its line, its bytes and the first advice."""
    if explanation is None or explanation["oom"] is None:
        return None
    oom = explanation["oom"]
    fixes = [finding for finding in explanation["findings"] if finding["fix"]]
    ids = [finding["id"] for finding in fixes if finding["id"] not in _LIMITS]
    return {
        "line": oom["line"],
        "in_use_mib": round(oom["allocated_bytes"] / 2**20),
        "first": ids[0] if ids else None,
    }


def row_of(script: Path, recording: Path) -> dict[str, Any]:
    """What is predicted of a program, and what was recorded."""
    predicted = answer_of("predict", "--json", str(script))
    failure = None if predicted is None else predicted["prediction"]["failure"]
    return {
        "program": script.stem,
        "predicted": facts_of(failure),
        "recorded": facts_of(answer_of("explain", "--json", str(recording))),
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    """One row a program: where both fail, with how much in use, and what both say first."""
    lines = [
        "| program | line | recorded | in use, MiB | recorded | first advice | recorded |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        predicted, recorded = row["predicted"], row["recorded"]
        if predicted is None:
            lines.append(f"| `{row['program']}` | – | {recorded['line']} | – | – | – | – |")
            continue
        in_use = [facts["in_use_mib"] for facts in (predicted, recorded)]
        same = predicted["first"] == recorded["first"]
        lines.append(
            f"| `{row['program']}` | {predicted['line']} | {recorded['line']} | {in_use[0]:,} | {in_use[1]:,}"
            f" | `{predicted['first']}` | {'the same' if same else '`' + recorded['first'] + '`'} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    pairs = [
        (script, recording)
        for script in sorted(asked.programs.glob("*.py"))
        if (recording := asked.recordings / f"{script.stem}.vram").exists()
    ]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        rows = list(pool.map(lambda pair: row_of(*pair), pairs))
    if asked.output is not None:
        asked.output.write_text(json.dumps(rows, indent=1) + "\n")
    print(table_of(rows))


if __name__ == "__main__":
    main()
