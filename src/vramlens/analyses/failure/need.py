"""What a failed step would have needed to finish, and which allocator settings would have
carried it.
"""

from __future__ import annotations

from dataclasses import dataclass

EARLIER_STEP, BLOCKS, WHOLE_RUN = "earlier_step", "blocks", "whole_run"
EXPANDABLE = "expandable_segments:True"
ADVICE = (
    EXPANDABLE,
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:8",
)
"""What people are told to try when memory ran out."""


_WIDE = 2.0


@dataclass(frozen=True, slots=True)
class Need:
    """What the step that failed would have needed to finish, as reserved bytes under the recorded
    settings.

    Attributes:
        peak_reserved_bytes: the likeliest peak; None where only a range, or a lower bound, is
            honest.
        low_bytes, high_bytes: the range of that peak; high is None where nothing bounds it.
        basis: earlier_step, blocks, or whole_run where all of the run is known: it went on after
            its failure, or was predicted; None where nothing of the step is known.
        scale: the factor of batch or length against the step that it is aligned with; None without
            one.
        step: the number of that step; None where it is not known to be one.
        done_share: the share of the step's requested bytes that was served already; None where
            unknown.
        confidence: exact, bounded, estimated or conditional.
        reason: what grew, where something did, in one sentence; "" elsewhere.
        limit_bytes: the least limit under which it would have finished; None where that is not
            known.
        floor_bytes: what any allocator would have to reserve for it: the most bytes alive at once.
    """

    peak_reserved_bytes: int | None
    low_bytes: int
    high_bytes: int | None
    basis: str | None
    scale: float | None = None
    step: int | None = None
    done_share: float | None = None
    confidence: str = "estimated"
    reason: str = ""
    limit_bytes: int | None = None
    floor_bytes: int | None = None

    @property
    def subject(self) -> str:
        """Of what it is the need, in words."""
        return "the whole run" if self.basis == WHOLE_RUN else "this step"

    @property
    def is_wide(self) -> bool:
        """Whether the range is so wide that only its lower end is worth a word."""
        if self.peak_reserved_bytes is not None or self.high_bytes is None:
            return False
        return self.high_bytes > _WIDE * self.low_bytes


@dataclass(frozen=True, slots=True)
class SettingVerdict:
    """What one allocator setting would have changed.

    Attributes:
        conf: the setting, as PyTorch takes it.
        lives: whether the run would have lived with it, by the need; None where that cannot be
            told.
        dies_after_bytes: how many bytes it is served beyond the failure before it fails; None where
            it lives, or where that cannot be told.
        confidence: exact, bounded, estimated or conditional.
        peak_reserved_bytes: what it reserves to the end of the need, or to where it fails.
        failed_bytes: the request that fails with it; None where none does.
        past_failure: whether the recorded requests get past the failure with it, whatever comes
            then.
    """

    conf: str
    lives: bool | None
    dies_after_bytes: int | None
    confidence: str
    peak_reserved_bytes: int
    past_failure: bool = False
    failed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LimitAdvice:
    """How much the process should be allowed to reserve, and what that rests on.

    Attributes:
        bytes: how much; None where nothing bounds what the step needs.
        least_bytes: what is known to be needed at least.
        needs: that need in words, and how sure it is.
        margin: in words, what ``bytes`` has beyond the need; "" where it is None.
        is_of_request: whether ``least_bytes`` is only what the failed request makes of it.
        is_least: whether later steps may well need more than ``bytes``.
        most_bytes: all that this process can have of the device, where that is less than is needed;
            None elsewhere.
        caveat: a sentence on what may fill that, too; "" where nothing is known to.
    """

    bytes: int | None
    least_bytes: int
    needs: str
    margin: str = ""
    is_of_request: bool = False
    is_least: bool = False
    most_bytes: int | None = None
    caveat: str = ""


def unknown_need(least_bytes: int) -> Need:
    """All that is known where nothing of the step is: at least what was alive, and the request."""
    return Need(None, least_bytes, None, None, confidence="conditional", floor_bytes=least_bytes)


def open_settings() -> tuple[SettingVerdict, ...]:
    """The common advice where nothing can be said about it."""
    return tuple(
        SettingVerdict(
            conf=conf,
            lives=None,
            dies_after_bytes=None,
            confidence="conditional",
            peak_reserved_bytes=0,
        )
        for conf in ADVICE
    )
