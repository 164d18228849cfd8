"""Why a guard stops: the reason for the report's first line, and what to do about it."""

from __future__ import annotations

from vramlens.recovery.guarding.guard_story import Stop, size_words


def stop_without_remedy(step: int, way_out: str | None) -> Stop:
    """No remedy was left; ``way_out`` None: on another rank."""
    if way_out is None:
        reason = "out of memory on another rank, and no remedy was left there"
        return Stop(step, reason, "read the report of the rank that ran out of memory")
    return Stop(step, "out of memory, and no remedy was left", way_out)


def stop_outside(step: int, half_done: bool, tried_bytes: int | None) -> tuple[str, Stop]:
    """A failure where nothing is repeated: its event in words, and the stop."""
    load = "load your last checkpoint and make a new guard"
    if half_done:
        text = "out of memory in the optimizer's step, after it had begun to change parameters"
        reason = "parameters are half updated; restore the checkpoint"
        return text, Stop(
            step, reason, f"{load}(..., step_backup=True), which can undo such a step"
        )
    text = f"out of memory outside of forward and backward{size_words(tried_bytes)}"
    reason = "out of memory outside of forward and backward, where the guard cannot repeat"
    return text, Stop(step, reason, f"{load} with a smaller batch, or an optimizer with less state")


def stop_in_collectives(step: int, half: int | None) -> Stop:
    """A model that is spread over ranks failed in the middle of a step."""
    reason = "out of memory in the middle of collectives, where no rank can repeat"
    return Stop(step, reason, f"restart all ranks with VRAMLENS_MICRO_BATCH={half or '...'}")


def stop_of_buffers(step: int, text: str) -> Stop:
    """A buffer cannot be put back."""
    way_on = "load your last checkpoint with a smaller batch, and make a new guard"
    return Stop(step, text.removeprefix("guard: "), way_on)
