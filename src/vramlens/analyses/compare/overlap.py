"""Overlap: how much of the memory of two runs is on lines and in modules of both, and whether
they are one program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramlens.analyses.compare.alignment import Alignment
from vramlens.analyses.compare.compared_run import HeldLine, Run
from vramlens.analyses.finding import Place
from vramlens.ground.place import path_in_packages

_LITTLE, _FEW_ACTIVATIONS = 0.1, 0.25
"""Runs that have less than this in common, on either side, look like two programs. Scripts that
are alike share more of
the activations: the batch, the loss. (Of the recordings in tests/data, variants of one program
share 0.36 or more on one side at least, and different ones under one script's names 0.14 or less
but for small ones.)
"""
_MUCH = 0.5
"""Runs whose modules have so much in common on both sides run one model, whatever script it is
in.
"""
_PASSING = ("activations", "temporaries", "workspace")
"""What the model makes on its way: its parameters stand on lines that every script has
(``model.cuda()``).
"""
Shares = tuple[float, float]
"""Of the run before, and of the run after."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The share of each run's bytes that is on code of both.

    Attributes:
        lines: of the bytes at the peak, on lines in both; None where a run has none.
        activations: the same of activations, temporaries and workspaces; None where they are too
            few to tell.
        modules: of the bytes at the peak in modules, in modules of the same kind in both; None
            without modules.
        unrelated: whether the runs look like two different programs.
    """

    lines: Shares | None
    activations: Shares | None
    modules: Shares | None
    unrelated: bool

    @property
    def words(self) -> str:
        """The shares that tell it: ``lines in both hold 2% of the bytes at the peak before and
        1% after``.
        """
        if self.lines is None:
            return ""
        subject, shares = "memory", self.lines
        if max(self.lines) >= _LITTLE and self.activations is not None:
            subject, shares = "activations", self.activations
        if not any((*shares, *(self.modules or ()))):
            return (
                f"no line{' or module' if self.modules is not None else ''} with {subject} is "
                "in both"
            )
        subject = {"memory": "bytes at the peak"}.get(subject, f"{subject} at the peak")
        sentence = (
            f"shared lines have {_percent(shares[0])} of the {subject} before and "
            f"{_percent(shares[1])} after"
        )
        if not any(shares):
            has_activations = subject.startswith("activations")
            sentence = f"they share no lines{' with activations' if has_activations else ''}"
        if self.modules is None:
            return sentence
        old, new = map(_percent, self.modules)
        if not any(shares):
            return f"{sentence}; shared modules hold {old} of the peak before and {new} after"
        return f"{sentence}, shared modules {old} and {new}"


def overlap(before: Run, after: Run, alignment: Alignment) -> Overlap:
    """What two runs have in common."""
    back = {new: old for old, new in alignment.after.items()}
    sides = ((before.lines, after.lines, alignment.after), (after.lines, before.lines, back))
    lines = _of_both(*(_at_peak(*side) for side in sides))
    at_most = _of_both(*(_at_most(*side) for side in sides))
    modules = _module_shares(before, after)
    activations = None
    if min(_passing_share(before), _passing_share(after)) >= _LITTLE:
        activations = _of_both(*(_at_peak(*side, _PASSING) for side in sides))
    apart = _are_below(lines, _LITTLE) and _are_below(at_most, _LITTLE)
    other_model = _are_below(activations, _FEW_ACTIVATIONS)
    same_model = modules is not None and min(modules) >= _MUCH
    unrelated = (apart or other_model) and not same_model
    return Overlap(lines, activations, modules, unrelated)


def _are_below(shares: Shares | None, limit: float) -> bool:
    return shares is not None and max(shares) < limit


def _of_both(before: tuple[int, int], after: tuple[int, int]) -> Shares | None:
    """The shares; None where one of the wholes is nothing."""
    if not before[1] or not after[1]:
        return None
    return before[0] / before[1], after[0] / after[1]


def _at_peak(
    lines: Mapping[Place, HeldLine],
    other_lines: Mapping[Place, HeldLine],
    pairs: Mapping[Place, Place],
    categories: tuple[str, ...] = (),
) -> tuple[int, int]:
    """Bytes at the peak on lines of both, and in all.

    Only lines that ask for memory in both count. One that calls a package (``model(x)``) is only as
    much the same as the functions of the package below it are.
    """
    shared = total_bytes = 0
    for place, line in lines.items():
        if categories and line.category not in categories:
            continue
        total_bytes += line.bytes
        other = other_lines.get(pairs[place]) if place in pairs else None
        if other is not None:
            inside = {_function(inner) for inner in other.inner}
            elsewhere = sum(
                size for inner, size in line.inner.items() if _function(inner) not in inside
            )
            shared += line.bytes - (elsewhere if other.bytes else 0)
    return shared, total_bytes


def _function(place: Place) -> tuple[str, str]:
    """A function of a package, whichever release and folder it is installed from."""
    return path_in_packages(place.file) or place.file, place.function


def _at_most(
    lines: Mapping[Place, HeldLine],
    other_lines: Mapping[Place, HeldLine],
    pairs: Mapping[Place, Place],
) -> tuple[int, int]:
    """The same of the most that each line held at any time."""
    total_bytes = sum(line.most_bytes for line in lines.values())
    return sum(
        line.most_bytes for place, line in lines.items() if pairs.get(place) in other_lines
    ), total_bytes


def _passing_share(run: Run) -> float:
    total_bytes = sum(line.bytes for line in run.lines.values())
    passing = sum(line.bytes for line in run.lines.values() if line.category in _PASSING)
    return passing / total_bytes if total_bytes else 0.0


def _module_shares(before: Run, after: Run) -> Shares | None:
    """The shares of what modules hold that modules of the same kind hold in both:
    ``layers.*.attn``, below any root.
    """
    old, new = (_by_kind(run) for run in (before, after))
    kinds = old.keys() & new.keys()
    return _of_both(
        *((sum(side[kind] for kind in kinds), sum(side.values())) for side in (old, new))
    )


def _by_kind(run: Run) -> dict[str, int]:
    """Bytes at the peak by the last two names of a module's path, without the wrappers' and
    layers' numbers.
    """
    peak = run.explanation.peak
    bytes_by_kind: dict[str, int] = {}
    for path, size in (peak.heap.by_module if peak is not None else {}).items():
        names = [name for name in path.split(".") if name not in ("_orig_mod", "module")]
        kind = ".".join("*" if name.isdigit() else name for name in names[-2:])
        bytes_by_kind[kind] = bytes_by_kind.get(kind, 0) + size
    return bytes_by_kind


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share == 0 or share >= 0.005 else "under 1%"
