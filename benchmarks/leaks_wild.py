"""What vramlens says of programs that it was not made for: live, as scripts, and by no_leaks.

    python benchmarks/leaks_wild.py [NAME...] [--ways live script no_leaks] [--bundles loops
    servers] [-v]

A leak is *found* where it is proven or likely, or where "Cannot tell" says what grew and no owner
can be named. *Owner* and *statement* are right where the answer names the words and lines that
``tests/leaks/wild`` marks; *bytes* where they are within 5% of the truth: by construction, or else
of what malloc counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leaks.wild import wild_programs  # noqa: E402
from leaks.wild_scores import FRAMEWORKS, WAYS, WildNursery, score, slope  # noqa: E402


def main() -> None:
    """Prints what is wrong of each program, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=(*WAYS, "bytes"))
    parser.add_argument("--bundles", nargs="+")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each answer")
    arguments = parser.parse_args()
    chosen = [
        program
        for name, program in wild_programs().items()
        if (not arguments.names or name in arguments.names)
        and (not arguments.bundles or program.bundle in arguments.bundles)
    ]
    sums: dict[str, Counter[str]] = {way: Counter() for way in arguments.ways}
    with tempfile.TemporaryDirectory(prefix="wild") as folder:
        nurseries = {False: WildNursery(folder, ())}
        for program in chosen:
            needs_frameworks = any(
                f"import {name.split('.')[0]}" in program.text for name in FRAMEWORKS
            )
            if needs_frameworks not in nurseries:
                nurseries[needs_frameworks] = WildNursery(folder, FRAMEWORKS)
            nursery = nurseries[needs_frameworks]
            true_bytes = float(program.bytes_per_step or 0)
            if (program.leaks and program.bytes_per_step is None) or arguments.ways == ["bytes"]:
                witness = nursery.run(program, "bytes")
                counted_bytes = slope(witness["bytes"]) if "bytes" in witness else 0.0
                if arguments.ways == ["bytes"]:
                    print(
                        program.name,
                        round(counted_bytes),
                        program.bytes_per_step,
                        witness.get("error", ""),
                    )
                    continue
                true_bytes = counted_bytes
            for way in arguments.ways:
                answer = nursery.run(program, way)
                points = score(program, answer, true_bytes)
                sums[way]["programs of " + ("leaks" if program.leaks else "look-alikes")] += 1
                sums[way].update(name for name, is_so in points.items() if is_so)
                wrong = [name for name, is_so in points.items() if is_so == (name == "alarm")]
                if wrong or "error" in answer:
                    print(
                        f"{way:9} {program.name:26} {' '.join(wrong)} (true {true_bytes:,.0f})",
                        flush=True,
                    )
                if "error" in answer:
                    print(answer["error"][-700:])
                if arguments.verbose:
                    print(answer.get("text"))
        for nursery in nurseries.values():
            nursery.close()
    for way, counter in sums.items():
        print(way, dict(counter))


if __name__ == "__main__":
    main()
