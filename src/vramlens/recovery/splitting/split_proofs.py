"""Proofs of splits: each form of a loss is checked before it is split, and each batch by what
its parts did.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vramlens.recovery.guarding.guard_options import GuardOptions
from vramlens.recovery.guarding.guard_story import UNCHECKED
from vramlens.recovery.losses.loss_form import PlainValues, batch_form, surroundings
from vramlens.recovery.losses.loss_graph import Top, top_of
from vramlens.recovery.losses.part_losses import BY_SAMPLES, Weights
from vramlens.recovery.splitting.gradient_runs import CheckedTraining
from vramlens.recovery.splitting.split_check import SplitCheck, check_split
from vramlens.recovery.training.batch_attempts import Call, PartsSeen
from vramlens.units import counted

if TYPE_CHECKING:
    import torch

_ROUNDED = 1e-5  # of divisors that are sums in single precision
REFUSED, UNSURE, CONFIRMED = 0, 1, 2
"""What the parts of a batch say of a split: it is wrong, a check must tell, it is as it was
proven.
"""
_UNREAD = "the graph of the loss does not show what the loss is divided by"
_UNEVEN = (
    "the parts were divided by a number that does not match their counts: return (sum, count), "
    "or pass count_fn"
)
_REFUSED_ELSEWHERE = "refused on another rank"
_EMPTY_PART = "the loss of a part is zero, so its divisor may differ from its count"
_MOST_FORMS = 64
_MOST_DOUBTS = 2  # checks of one batch after its parts have run
_CHECKED_AGAIN = frozenset(digit * 10**zeros for zeros in range(1, 6) for digit in (1, 2, 5))
"""At which splits of a form the check is repeated: values of a batch may do what no setting
tells.
"""
_COUNTED = {"samples": "number of samples", "sum and count": "count that loss_fn gives"}


@dataclass(slots=True)
class Proof:
    """What is known of one form of a loss.

    Attributes:
        check: what the latest check found.
        checked: the number of the call that it was made with.
        operations: those that parts of this form have been made of; None: none has run yet.
        splits: batches of this form that were split; ``trusted``: those since the latest check.
    """

    check: SplitCheck
    checked: int
    operations: frozenset[str] | None = None
    splits: int = 0
    trusted: int = 0


@dataclass(frozen=True)
class TrainingContext:
    """What a check needs to know of the training.

    Attributes:
        agree: the least of all ranks' numbers, where ranks share a model; None: no rank waits in a
            forward.
    """

    model: torch.nn.Module
    parameters: Sequence[tuple[str, torch.nn.Parameter]]
    devices: Sequence[torch.device]
    clean: Callable[[], None]
    scale: Callable[[], float]
    note: Callable[..., None]
    agree: Callable[[int], int] | None


class SplitProofs:
    """Decides whether a batch may be split, and by what its parts count."""

    def __init__(self, around: TrainingContext, options: GuardOptions) -> None:
        self._around, self._options = around, options
        self._proofs: dict[Any, Proof] = {}
        self._latest: SplitCheck | None = None

    @property
    def splitting(self) -> bool:
        """Whether batches are split where their size asks for it: nothing was found against it."""
        return self._latest is None or self._latest.equal or not self._options.strict

    def weights(self, call: Call, model: Any) -> Weights | None:
        """By what the parts of a batch count; None: it must not be split, and the reason was
        noted.
        """
        if call.refusal:
            return None
        if not self._options.verify:
            return self._unchecked()
        proof = self._proof(call, model)
        return proof.check.weights if proof.check.equal or not self._options.strict else None

    def refusal(self, call: Call, model: Any) -> SplitCheck | None:
        """What was found against a split of a batch; None: nothing."""
        if call.refusal:
            return SplitCheck(False, error=0.0, reason=call.refusal)
        if not self._options.verify:
            return None
        check = self._proof(call, model).check
        return None if check.equal or not self._options.strict else check

    def confirmed(self, call: Call, model: Any, changed_buffers: Callable[[], list[str]]) -> bool:
        """Whether what the parts of a batch did is what was proven; False: it must be run again, in
        another way.

        Called after the parts have run, before anything is committed.
        """
        parts_seen, call.parts_seen = call.parts_seen, None
        if parts_seen is None or not self._options.verify:
            return True
        proof = self._proofs[call.form]
        if not proof.check.equal:
            return True  # strict=False: what it changes has been said
        agreed, reason = self._agreed_verdict(call, proof, parts_seen, changed_buffers)
        if agreed == UNSURE:
            before, proof = proof.check, self._checked(call, model)
            if not proof.check.equal:
                return not self._options.strict
            if proof.check.weights.name != before.weights.name:
                return False
            agreed = CONFIRMED if self._agreed(int(proof.check.whole_compared)) else REFUSED
            proof.operations = (proof.operations or frozenset()) | parts_seen.operations
        if agreed == REFUSED:
            return self._refused(call, reason)
        proof.splits += 1
        proof.trusted += 1
        return True

    def _refused(self, call: Call, reason: str) -> bool:
        """Notes that parts did something else; whether the batch is split anyway."""
        reason = reason or _REFUSED_ELSEWHERE
        self._note_difference(reason)
        if self._options.strict:
            call.refusal = reason
        return not self._options.strict

    def _agreed_verdict(
        self,
        call: Call,
        proof: Proof,
        parts_seen: PartsSeen,
        changed_buffers: Callable[[], list[str]],
    ) -> tuple[int, str]:
        """The least verdict of all ranks, and this rank's reason; no more doubts than a few."""
        verdict, reason = self._verdict(proof, parts_seen, changed_buffers)
        if verdict == UNSURE and proof.checked == call.number:  # the check of this very batch tells
            verdict = CONFIRMED if proof.check.whole_compared else REFUSED
        agreed = self._agreed(verdict)
        call.doubts += agreed == UNSURE
        if call.doubts > _MOST_DOUBTS:
            return REFUSED, reason or _UNREAD
        return agreed, reason

    def prove(self, call: Call, model: Any) -> SplitCheck:
        """Checks a batch on demand; what was found holds for later batches of its form."""
        call.form = self._form(call)
        return self._checked(call, model).check

    def _check(self, call: Call, model: Any) -> SplitCheck:
        around, samples = self._around, call.samples
        assert samples is not None
        values = PlainValues(call.loss_fn, around.model)
        settings = CheckedTraining(
            model=getattr(model, "_orig_mod", model),
            parameters=around.parameters,
            loss_fn=call.loss_fn,
            count_fn=self._options.count_fn,
            devices=around.devices,
            clean=around.clean,
            scale=around.scale(),
            compares_whole=around.agree is None,
            values=values,
            part_size=call.size,
        )
        most_samples = samples.count if call.size is None else max(2, call.size)
        return check_split(settings, samples, most_samples)

    # One form of a loss.

    def _proof(self, call: Call, model: Any) -> Proof:
        """The proof for a call's form, made now if there is none; again at the tenth, twentieth,
        ... split.
        """
        call.form = self._form(call)
        proof = self._proofs.get(call.form)
        is_proven = proof is not None and (
            proof.checked == call.number or proof.splits not in _CHECKED_AGAIN
        )
        if proof is not None and not proof.check.equal and proof.check.error is None:
            is_proven = proof.checked == call.number  # nothing was compared then
        if not self._agreed(int(is_proven)):
            return self._checked(call, model)
        assert proof is not None
        self._latest = proof.check
        return proof

    def _form(self, call: Call) -> Any:
        assert call.samples is not None
        values = PlainValues(call.loss_fn, self._around.model)
        return values.key, tuple(batch_form(call.batch, call.samples.count)), surroundings()

    def _checked(self, call: Call, model: Any) -> Proof:
        before = self._proofs.get(call.form)
        proven = before if before is not None and before.check.equal else None
        check = self._check(call, model)
        is_decided = self._agreed(int(not check.undecided))
        if proven is not None and not is_decided:  # nothing was learned
            return self._kept(call, replace(proven.check, whole_compared=False), before)
        if not self._agreed(int(check.equal)) and check.equal:
            check = replace(check, equal=False, error=None, reason=_REFUSED_ELSEWHERE)
        self._note_check(check)
        if proven is not None and proven.trusted and not check.equal:
            batches = counted(proven.trusted, "batch", "batches")
            self._around.note(
                "check",
                f"{batches} since the last check may have had a different gradient: {check.reason}",
                True,
            )
        return self._kept(call, check, before)

    def _kept(self, call: Call, check: SplitCheck, before: Proof | None) -> Proof:
        proof = Proof(check, call.number, None if before is None else before.operations)
        proof.splits = 0 if before is None else before.splits
        while len(self._proofs) >= _MOST_FORMS:
            self._proofs.pop(next(iter(self._proofs)))
        self._proofs[call.form] = proof
        self._latest = check
        return proof

    def _verdict(
        self, proof: Proof, parts: PartsSeen, changed_buffers: Callable[[], list[str]]
    ) -> tuple[int, str]:
        """What the parts of a batch say of the proof by which it was split, and the reason."""
        if proof.operations is None:
            proof.operations = parts.operations
        if parts.operations - proof.operations:
            return UNSURE, "the loss uses different operations than the one that was checked"
        if set(changed_buffers()) - proof.check.buffers:
            return UNSURE, "a buffer changed that did not change when the split was checked"
        return _evenness(proof.check, parts)

    def _agreed(self, number: int) -> int:
        """The least of all ranks' numbers, where they share a model."""
        return number if self._around.agree is None else self._around.agree(number)

    # Words.

    def _unchecked(self) -> Weights:
        if self._latest is None:
            self._around.note("check", UNCHECKED)
        count_fn = self._options.count_fn
        weights = Weights("count_fn", count_fn) if count_fn else BY_SAMPLES
        self._latest = SplitCheck(True, weights=weights, reason="not checked: verify=False")
        return weights

    def _note_difference(self, reason: str) -> None:
        if self._options.strict:
            self._around.note("refusal", f"does not split: {reason}")
            return
        self._around.note("check", f"splits even though gradients change: {reason}", True)

    def _note_check(self, check: SplitCheck) -> None:
        if check.equal:
            self._around.note(
                "check",
                f"checked with {check.samples} samples: parts give the same gradient as the "
                f"whole batch, within {check.error:.1e} (rounding may do {check.tolerance:.1e});"
                f" {_counting(check.weights)}; dropout was turned off for this check only",
            )
            return
        differ = (
            ""
            if check.error is None
            else f" (gradients differ by {100 * check.error:.1f}% at {check.parameter})"
        )
        self._note_difference(f"{check.reason}{differ}")


def _counting(weights: Weights) -> str:
    if weights.add_up:
        return "the losses of the parts add up"
    return f"each part counts by its {_COUNTED.get(weights.name, weights.name)}"


def _evenness(check: SplitCheck, parts: PartsSeen) -> tuple[int, str]:
    """How certain it is that each item of a batch weighs alike, whichever part it lay in (share
    over divisor is the same for all), and why not.
    """
    tops = _tops_as_proven(check, parts)
    if tops is None:
        return UNSURE, _UNREAD
    if any(parts.empty):  # divisors are often kept from being zero: then they do not add up
        return UNSURE, _EMPTY_PART
    shares = [float(share) for share in parts.shares]
    for index, adds_up in enumerate(_summands_that_add_up(check)):
        coefficients = [top.coefficients[index] for top in tops]
        weights = list(map(operator.mul, coefficients, shares))
        if not adds_up or not all(map(math.isfinite, weights)):
            return UNSURE, _UNREAD
        if max(weights) - min(weights) > _ROUNDED * max(map(abs, weights)):
            return REFUSED, _UNEVEN
    return CONFIRMED, ""


def _tops_as_proven(check: SplitCheck, parts: PartsSeen) -> list[Top] | None:
    """The linear tops of the parts' losses; None where one is not as it was proven."""
    tops = [top for top in map(top_of, parts.tops) if top]
    if check.paths is None or len(tops) < len(parts.tops):
        return None
    return tops if all(top.paths == check.paths for top in tops) else None


def _summands_that_add_up(check: SplitCheck) -> Sequence[bool]:
    """For each summand of the loss, whether the divisors of parts make that of the batch."""
    summands = len(check.paths or ())
    if check.weights.add_up or check.weights.name == "sum and count":
        return [True] * summands
    return check.scales or [False] * summands
