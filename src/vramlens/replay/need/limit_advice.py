"""The limit that lets a run go on, where the process's own limit refused a request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vramlens.analyses.attribution.training import Training, pass_starts
from vramlens.analyses.failure.need import BLOCKS, WHOLE_RUN, LimitAdvice, Need
from vramlens.analyses.failure.oom import memory_fraction
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.table import FROM_RECORDING
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.ground.vocabulary import Cause
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import OomVerdict

_SPARE = 1.1
"""Of the highest need: holes of later steps take a little more. Memory that is free costs nothing."""
_SPARE_FOR_LARGER_STEPS = 1.5
"""Where steps differ in size, or fewer than two are recorded whole: a later one may be larger."""
_WITHOUT_GAPS = 0.98
"""Of the need: less than this is alive at once where gaps are worth a word."""
_SETS_LIMIT = "torch.cuda.set_per_process_memory_fraction"
_SPARE_OF_FIRST_STEP = 1.25
"""Its range ends far above what such steps took: 1.7 times as much in the median of 91."""
_MUCH_KEPT = 0.1
"""Of the need: what earlier passes keep without training is worth a word."""
_SAVINGS = frozenset(row.id for row in FROM_RECORDING if row.saves_at_most)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of the steps after the failed one.

    Attributes:
        lasting: whether they are no larger.
        growing: whether what steps leave behind grows.
        climbing: whether each step or stair of steps needed more than those before.
        kept_by_passes: without training, the bytes that passes before the failed one keep.
    """

    lasting: bool
    growing: bool
    climbing: bool = False
    kept_by_passes: int = 0

    def is_kept_by_passes(self, need: Need) -> bool:
        """True where passes that are done keep a part of the need that is worth a word."""
        return self.kept_by_passes >= max(1, int(_MUCH_KEPT * need.low_bytes))


def bytes_of_earlier_passes(view: Attribution) -> int:
    """What modules computed in passes before the failed one and the program still keeps."""
    marked = np.flatnonzero(view.modules.marked)
    if view.training != Training.ABSENT or not len(marked):
        return 0
    allocations, event = view.device.allocations, view.device.out_of_memory[-1].event
    earlier = marked[marked < pass_starts(view.modules, marked)[-1]]
    kept_rows = earlier[allocations.died[earlier] > event]
    return int(allocations.requested_bytes[kept_rows].sum())


def limit_advice(view: Attribution, oom: OomVerdict, need: Need, outlook: Outlook) -> LimitAdvice:
    """What to allow the process, by what the run needs rather than by the one request."""
    most = _most_to_have(oom, view.trace.total_bytes.get(view.device.device))
    caveat = _caveat(oom, need, outlook)
    if most is not None and need.low_bytes > most:
        return LimitAdvice(None, need.low_bytes, _needs(need), most_bytes=most)
    if need.high_bytes is None or need.is_wide:
        least = _with_request_bytes(need, oom)
        needs = _needs(need)
        if least is not None:
            needs = f"with this request, {format_size(least)} are reserved"
        needs += f"; {_what_is_open(need)} may need more"
        is_of_request = least is not None
        return LimitAdvice(
            None, least or _least(need), needs, is_of_request=is_of_request, caveat=caveat
        )
    size = limit_for(need, outlook)
    which = "what" if format_size(need.high_bytes) == format_size(_least(need)) else "the most that"
    margin = f"{which} {need.subject} needs"
    if need.basis != WHOLE_RUN:
        margin = f"{_spare(need, outlook)}x {margin}"
        margin += "" if outlook.lasting else ", as later steps may be larger"
    if most is not None and most < size:
        size, margin = most, "all that it can have"
    is_least = outlook.growing or outlook.climbing
    return LimitAdvice(
        size, _least(need), _needs(need), margin=margin, is_least=is_least, caveat=caveat
    )


def _what_is_open(need: Need) -> str:
    if need.basis == WHOLE_RUN:
        return "more turns of a loop that a made-up number ends"
    return "the rest of the step is not recorded and"


def _caveat(oom: OomVerdict, need: Need, outlook: Outlook) -> str:
    """What may fill a higher limit, too."""
    if oom.cause == Cause.LEAK:
        return "What earlier steps left will grow and fill that limit too"
    if outlook.growing:
        return "Memory was still growing, so it may fill that limit too"
    if outlook.climbing and need.high_bytes is not None:
        return "Steps needed more and more so far, so later ones may need more than that"
    if outlook.is_kept_by_passes(need):
        kept_size = format_size(outlook.kept_by_passes)
        return f"Earlier passes keep {kept_size} (results, caches), and later ones may add to that"
    return ""


def with_limit(
    finding: Finding, view: Attribution, oom: OomVerdict, advice: LimitAdvice
) -> Finding:
    """The advice about the limit, with what the run needs rather than the one request."""
    if finding.id != "process_limit":
        return finding
    if advice.most_bytes is not None:
        fix = (
            f"a higher limit alone is not enough: {advice.needs}, and this process can have"
            f" {format_size(advice.most_bytes)} of the GPU"
        )
        return replace(finding, fix=fix)
    fix = _raise_to(advice, view.trace.total_bytes.get(view.device.device))
    return replace(finding, fix=". ".join(filter(None, (fix, advice.caveat))))


def growth_by_steps(view: Attribution) -> str:
    """From what to what memory grew."""
    is_pattern = view.steps.source == PATTERN
    return "from one repetition to the next" if is_pattern else "from step to step"


def _raise_to(advice: LimitAdvice, total: int | None) -> str:
    """How far to raise the limit, and what for."""
    if advice.bytes is None:
        return f"raise this process's limit, or remove it with {_SETS_LIMIT}(1.0): {advice.needs}"
    least = "at least " if advice.is_least else ""
    size, call = format_size(advice.bytes), _call(advice.bytes, total)
    return f"raise this process's limit to {least}{size} ({advice.margin}){call}; {advice.needs}"


def _with_request_bytes(need: Need, oom: OomVerdict) -> int | None:
    """What is reserved once the request is served; None where more is known to be needed."""
    if oom.reserved_bytes is None or oom.tried_bytes is None:
        return None
    reserved_bytes = oom.reserved_bytes + oom.tried_bytes
    return reserved_bytes if need.low_bytes <= reserved_bytes else None


def limit_for(need: Need, outlook: Outlook) -> int:
    """The limit to set: what the step needs at most, and room for what later steps add."""
    if need.high_bytes is None:
        return need.low_bytes
    return int(need.high_bytes * _spare(need, outlook))


def _spare(need: Need, outlook: Outlook) -> float:
    if need.basis == WHOLE_RUN:
        return 1.0  # its range has what is not sure
    if outlook.lasting:
        return _SPARE
    is_first_step = need.basis == BLOCKS and not outlook.is_kept_by_passes(need)
    return _SPARE_OF_FIRST_STEP if is_first_step else _SPARE_FOR_LARGER_STEPS


def _most_to_have(oom: OomVerdict, total: int | None) -> int | None:
    """What this process could reserve on the device without a limit; None where not known."""
    if oom.reserved_bytes is None or oom.free_bytes is None:
        return total
    most_bytes = oom.reserved_bytes + oom.free_bytes
    return most_bytes if total is None else min(most_bytes, total)


def has_room(oom: OomVerdict, need: Need, outlook: Outlook) -> bool:
    """Whether the device has the memory that the raised limit allows."""
    if oom.free_bytes is None or oom.reserved_bytes is None:
        return False
    return limit_for(need, outlook) - oom.reserved_bytes <= oom.free_bytes


def _call(size: int, total: int | None) -> str:
    """The statement that sets the limit."""
    if not total:
        return f" with {_SETS_LIMIT}"
    return f" with {_SETS_LIMIT}({memory_fraction(size, total)})"


def _needs(need: Need) -> str:
    """The step's need in words: a point, a range, or the least."""
    if need.high_bytes is None or need.is_wide:
        is_point = need.peak_reserved_bytes is not None
        return f"{need.subject} needs {'' if is_point else 'at least '}{format_size(_least(need))}"
    high = format_size(need.high_bytes)
    if need.peak_reserved_bytes is None:
        return f"{need.subject} needs between {format_size(need.low_bytes)} and {high} (estimated)"
    likely = format_size(_least(need))
    # Beside what it needs without gaps, which the headline may say.
    has_gaps = (need.floor_bytes or _least(need)) < _WITHOUT_GAPS * _least(need)
    gaps = "gaps included, " if has_gaps else ""
    return f"{gaps}{need.subject} needs {likely}" + (f", at most {high}" if high != likely else "")


def _least(need: Need) -> int:
    """The least limit that the need speaks for."""
    return need.limit_bytes or need.peak_reserved_bytes or need.low_bytes


def missing_bytes(need: Need, capacity_bytes: int | None) -> int:
    """By how much what must be alive at once exceeds what could be reserved; 0 where it does not,
    or nothing tells.
    """
    if need.floor_bytes is None or capacity_bytes is None:
        return 0
    return max(0, need.floor_bytes - capacity_bytes)


def with_shortage(finding: Finding, missing: int) -> Finding:
    """The finding, with a word on what is still missing after its fix."""
    saved = finding.size_bytes
    is_all = finding.id in _SAVINGS and not finding.recurs
    if not is_all or finding.fix is None or not 0 < saved < missing:
        return finding
    still = format_size(missing - saved)
    return replace(finding, fix=f"{finding.fix}; not enough alone: {still} more are missing")
