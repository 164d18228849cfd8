"""How often ``vramlens ranks`` names the planted cause, and how often it cries wolf.

    python benchmarks/ranks.py [JOBS] [CLEAN]

makes JOBS jobs (default 600) of 2 to 256 ranks out of real recordings of seventeen kinds
(tests/support/planted_ranks.py), in each of which one rank has one known cause in a size from 2.5
to 50% of the peak, with and without marks of steps; and CLEAN jobs (default 120) without any.
Prints what was planted against what was said, and exits with 1 under 95% or with a single false
alarm. Some of the recordings are made as long as 200,000 events.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.planted_ranks import BASES, CAUSES, CLEAN, NotPossible, base_of, job
from vramlens.ranks import compare

SHARES = (0.025, 0.04, 0.08, 0.2, 0.5)
WORLDS = (2, 3, 4, 8, 16, 64, 256)
LONG = {"recordings/gpt.pickle.xz": 200_000, "captured/lightning.vram": 100_000}


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    clean = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    chance = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    table: dict[str, Counter[str]] = defaultdict(Counter)
    right = total = wrong_line = 0
    began = time.perf_counter()
    names = list(CAUSES)
    while total < jobs:
        name, share, world = names[total % len(names)], chance.choice(SHARES), chance.choice(WORLDS)
        base = base_of(chance.choice(BASES))
        if chance.random() < 0.02 and base.name in LONG:
            base = base_of(base.name, LONG[base.name])
        seed, marks = chance.randrange(50), chance.random() < 0.5
        try:
            ranks, odd = job(base, name, share, world, seed, marks=marks)
        except NotPossible:
            continue
        total += 1
        _, cause, line, _ = CAUSES[name]
        said = [(one.ranks, one.cause) for one in compare(ranks).differences]
        ok = said == [((odd,), cause)]
        right += ok
        table[name][
            "right"
            if ok
            else ", ".join(f"{c}{'' if r == (odd,) else ' elsewhere'}" for r, c in said) or "silent"
        ] += 1
        if ok and line:
            place = compare(ranks).differences[0].place
            wrong_line += place is None or (place.file, place.line) != line
        if not ok:
            print("wrong:", name, share, world, base.name, seed, marks, said, file=sys.stderr)
    alarms = 0
    kinds = list(CLEAN)
    for number in range(clean):
        kind, base = kinds[number % len(kinds)], base_of(chance.choice(BASES))
        world = chance.choice((2, 4, 8, 16)) if kind != "same" else chance.choice(WORLDS)
        if len(base.events) > 20_000:
            world = min(world, 4)
        said = [
            (one.ranks, one.cause, one.bytes)
            for one in compare(CLEAN[kind](base, world, number)).differences
        ]
        # The longest sequences of all on one rank: leveling them lowers the job's peak, so it is no
        #     false alarm.
        worth = kind == "lengths" and all(
            c == "uneven_batch" and b > 0.2 * base.peak for _, c, b in said
        )
        if said and worth:
            table[f"clean, {kind}"]["worth acting on: uneven_batch by 20% and more"] += 1
            continue
        alarms += bool(said)
        table[f"clean, {kind}"][
            "right" if not said else ", ".join(sorted({cause for _, cause, _ in said}))
        ] += 1
        if said:
            print("alarm:", kind, world, base.name, number, base.peak, said[:3], file=sys.stderr)
    for name, counts in table.items():
        print(
            f"{name:20} {counts['right']:4} of {sum(counts.values()):4}",
            *(f"  {what} {count}" for what, count in counts.most_common() if what != "right"),
        )
    print(
        f"right {right} of {total} ({right / max(1, total):.1%}), wrong line {wrong_line}, "
        f"false alarms {alarms} of {clean}; {time.perf_counter() - began:.0f} s"
    )
    raise SystemExit(right < 0.95 * total or alarms > 0)


if __name__ == "__main__":
    main()
