"""The values that are known: small tensors of integers, masks and positions, which decide
shapes; and made-up ones.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from vramlens.prediction.lbfgs_history import holds_in_lbfgs
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.tensors import even_choices
from vramlens.prediction.tensors.asked_values import AskedValues, asserted_truth
from vramlens.prediction.tensors.counts import count_of
from vramlens.prediction.tensors.ended_sequences import (
    PARTS,
    all_hold,
    any_holds,
    is_about_endings,
    tell_endings,
)
from vramlens.prediction.tensors.largest_results import (
    Assumption,
    assumption_of,
    largest_result,
)
from vramlens.prediction.tensors.operator_schema import ABSORBING, UNABLE, Operator
from vramlens.prediction.tensors.random_numbers import CardNumbers
from vramlens.prediction.tensors.two_numbers import follow_two_numbers, forget_two_numbers

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MOST_INTEGER_BYTES = 32 << 20
_MOST_FLOAT_BYTES = {True: 4 << 20, False: 64 << 10}
"""By whether they lie in one line, as what indices are made of; others may be a network's."""
_MOST_DATA_BYTES = 1 << 20
"""Of numbers that no gradient goes through: they are no network's, whatever their dimensions."""
_FEW_NUMBERS = 64
_DRAWS = {"aten.rand", "aten.rand_like", "aten.bernoulli", "aten.poisson", "aten.binomial"}
"""Of which masks, counts and choices are made."""
_DECAY = 0.999
"""Of a made-up number from one question to the next."""
_ATTRIBUTE = "vramlens_value"
_GUESS = "vramlens_guess"

_SHAPED_BY_VALUES = {
    "aten.nonzero", "aten.masked_select", "aten.unique_dim", "aten._unique2", "aten._unique", "aten.unique_consecutive",
    "aten.bincount", "aten.repeat_interleave", "torchvision.nms",
}  # fmt: skip
_ALL = {"aten.all", "aten._is_all_true"}
_SELECTIONS = {"aten.index", "aten.masked_select"}
_FILLS = {"aten.zero_", "aten.fill_", "aten.bernoulli_"}
_LEAVES_VALUES = {"aten._amp_foreach_non_finite_check_and_unscale_", "aten._amp_update_scale_"}
"""Of a loss scaler: predicted are steps without an overflow."""


class KnownValues:
    """Which tensors' values are known.

    Attributes:
        assumptions: what was taken for results whose size such values decide, and how often.
        asked: the lines of the user's that were given a made-up one.
    """

    def __init__(self, log: RequestLog) -> None:
        self._unknown: set[int] = set()
        self.asked = AskedValues(log)
        self.assumptions: Counter[Assumption] = Counter()
        self._made_up = 1.0
        self._card_numbers = CardNumbers()

    def of(self, tensor: Any) -> Any | None:
        """A tensor's values, on the CPU; None where they are not known."""
        if not hasattr(tensor, "fake_device"):  # on the host, where values are values
            return tensor
        content = tensor.__dict__.get(_ATTRIBUTE)
        if content is None or (self._unknown and content.untyped_storage()._cdata in self._unknown):
            return None
        return content

    def is_known(self, tensor: Any) -> bool:
        """Whether a tensor's values are known."""
        return self.of(tensor) is not None

    def set(self, tensor: Any, value: Any) -> None:
        """Remembers a tensor's values."""
        self._unknown.discard(value.untyped_storage()._cdata)
        setattr(tensor, _ATTRIBUTE, value)

    def is_worth(self, tensor: Any) -> bool:
        """Whether a tensor is small enough, and of a kind that decides shapes."""
        if tensor.layout is not torch.strided:
            return False
        is_line = tensor.dim() == 1
        is_real = tensor.is_floating_point()
        most_bytes = _MOST_FLOAT_BYTES[is_line] if is_real else _MOST_INTEGER_BYTES
        return bool(tensor.nbytes <= most_bytes)

    def are_equal(self, first: Any, second: Any) -> bool:
        """Whether two tensors are equal; where values are not known, whether they are the same
        memory.
        """
        first_values, other = self.of(first), self.of(second)
        if first_values is not None and other is not None:
            return bool(torch.equal(first_values, other))
        if first.shape != second.shape:
            return False
        self.asked.note()
        return bool(first.untyped_storage()._cdata == second.untyped_storage()._cdata)

    def number(self, tensor: Any) -> Any:
        """The number in a tensor of one; a made-up one where it is not known: False, 0, the most
        that a count of what is there can be, or just below 1.0 and a little less each time, so
        that loops that wait for convergence go on, and end.
        """
        content = self.of(tensor)
        if content is not None:
            return content.item()
        if not is_about_endings(tensor):
            self.asked.note()
        if tensor.dtype is torch.bool:
            guess = tensor.__dict__.get(_GUESS)
            return bool(asserted_truth() if guess is None else guess)
        if not tensor.is_floating_point():
            return count_of(tensor)
        self._made_up *= _DECAY
        return self._made_up

    def deviation(self) -> float:
        """A number of the normal distribution, from the card's own sequence."""
        with self._card_numbers.drawn():
            return float(torch.randn(()))

    def computed_first(
        self, operator: Operator, args: Any, kwargs: Any, tensors: list[Any]
    ) -> Any | None:
        """The values of a result whose shape hangs on them; None where the shape follows from
        shapes.
        """
        if operator.name not in _SHAPED_BY_VALUES and not _selects_by_mask(operator, args):
            return None
        if operator.name in _SELECTIONS and all(
            self.of(tensor) is not None for tensor in tensors[1:]
        ):
            source = self.of(args[0])
            if source is None:  # its own values decide no shape
                source = torch.zeros((), dtype=args[0].dtype).expand(args[0].shape)
            return operator.function(source, *_replaced(args[1:], self))
        if any(self.of(tensor) is None for tensor in tensors):
            size = stated_size(operator, args, kwargs)
            if size is None:
                self.assumptions[assumption_of(operator, args)] += 1
                return largest_result(operator, args)
            if not is_even_count(operator, args):
                return torch.zeros(size, dtype=torch.long)
            counted = int(args[0].numel())
            return counted // size + (torch.arange(size) < counted % size).long()
        return operator.function(*_replaced(args, self), **_on_cpu(_replaced_in(kwargs, self)))

    def follow(
        self, operator: Operator, args: Any, kwargs: Any, tensors: list[Any], result: Any
    ) -> None:
        """Computes a result's values where all that it is made of is known and small."""
        outputs = _listed(result)
        if operator.written:
            self._follow_written(operator, args, kwargs, tensors)
            return
        is_worth_it = self._are_worth_following(operator.name, outputs, tensors)
        is_known = is_worth_it and self._are_known(tensors)
        content = None if is_known else follow_two_numbers(operator, args, kwargs, result, self.of)
        if content is not None:
            self.set(result, content)
        elif is_worth_it:
            self._follow_small(operator, args, kwargs, tensors, outputs, is_known=is_known)

    def _follow_small(
        self,
        operator: Operator,
        args: Any,
        kwargs: Any,
        tensors: list[Any],
        outputs: list[Any],
        *,
        is_known: bool,
    ) -> None:
        """Computes the values of results that are small.

        Args:
            is_known: whether all that they are made of is known.
        """
        finite = _finite(operator, args)
        if finite is not None:
            self.set(outputs[0], torch.full(outputs[0].shape, finite, dtype=torch.bool))
            return
        if operator.is_random and outputs[0].is_floating_point() and operator.name not in _DRAWS:
            return
        if not is_known:
            self._follow_partly(operator.name, args, tensors, outputs[0])
            return
        if not all(hasattr(tensor, "fake_device") or self.is_worth(tensor) for tensor in tensors):
            return
        contents = _listed(self._computed(operator, args, kwargs))
        for output, content in zip(outputs, contents, strict=False):
            if hasattr(output, "fake_device") and output.shape == content.shape:
                self.set(output, content)

    def _follow_partly(self, name: str, args: Any, tensors: list[Any], output: Any) -> None:
        """What a result is where not all that it is made of is known."""
        if holds_in_lbfgs(name, args) or _is_below_one(name, args, output):
            setattr(output, _GUESS, True)
        elif name in _ALL or name == "aten.any":
            ask = all_hold if name in _ALL else any_holds
            setattr(output, _GUESS, ask(args[0]))
            tell_endings(output, args[0])
        decided = self._decided_by_one_side(name, tensors)
        if decided is None and name in PARTS:
            decided = self._only_value(args[0])
        if decided is not None:
            self.set(output, torch.full(output.shape, decided, dtype=output.dtype))

    def _decided_by_one_side(self, name: str, tensors: list[Any]) -> bool | None:
        """The value of a whole result that one known side decides; None where none does.

        A generation ends so: at its longest every sequence is done, whatever its tokens are.
        """
        value = ABSORBING.get(name.removesuffix("_"))
        if value is None:
            return None
        for tensor in tensors:
            content = self.of(tensor)
            if content is None or (value and content.dtype is not torch.bool):
                continue
            if bool((content == value).all()):
                return value
        return None

    def _only_value(self, tensor: Any) -> Any | None:
        """The value that all of a tensor's numbers have: any part of it has it, too."""
        content = self.of(tensor)
        if content is None or not content.numel():
            return None
        first = content.flatten()[0]
        return first.item() if bool((content == first).all()) else None

    def _are_worth_following(self, name: str, outputs: list[Any], tensors: list[Any]) -> bool:
        """Whether results are small; numbers that come from nowhere are followed only if few, in a
        line, or drawn.
        """
        if not outputs or not all(isinstance(output, torch.Tensor) for output in outputs):
            return False
        first = outputs[0]
        if name in _DRAWS:
            return bool(first.nbytes <= _MOST_FLOAT_BYTES[True])
        is_large = first.is_floating_point() and first.numel() > _FEW_NUMBERS and first.dim() != 1
        is_data = not any(tensor.requires_grad for tensor in tensors)
        most_bytes = _MOST_DATA_BYTES if is_data else 0
        are_worth = all(self.is_worth(output) or output.nbytes <= most_bytes for output in outputs)
        return are_worth and (bool(tensors) or not is_large)

    def _are_known(self, tensors: list[Any]) -> bool:
        return all(map(self.is_known, tensors))

    def overwritten(self, target: Any, source: Any) -> None:
        """A whole tensor was copied over another."""
        old, new = self.of(target), self.of(source)
        if old is not None and new is not None:
            old.copy_(new)
        elif old is not None:
            self._unknown.add(old.untyped_storage()._cdata)
        elif new is not None and self.is_worth(target) and not target._is_view():
            self.set(target, new.to(target.dtype, copy=True).expand(target.shape).clone())

    def _follow_written(
        self, operator: Operator, args: Any, kwargs: Any, tensors: list[Any]
    ) -> None:
        """Computes what an operator writes to what it is given."""
        if operator.name in _LEAVES_VALUES:
            return
        if any(isinstance(kwargs.get(name), torch.Tensor) for name in operator.out_names):
            self._follow_out(operator, args, kwargs, tensors)
            return
        written = [args[place] for place in operator.written if place < len(args)]
        stand_ins = [tensor for tensor in written if hasattr(tensor, "fake_device")]
        for tensor in stand_ins:
            forget_two_numbers(tensor)
        if self._is_set_by_one_side(operator.name, tensors, stand_ins):
            return
        contents = [content for content in map(self.of, stand_ins) if content is not None]
        if contents:
            self._follow_in_place(operator, args, kwargs, tensors, contents)
        elif operator.name in _FILLS and written and hasattr(written[0], "fake_device"):
            self._filled(operator, written[0], args)

    def _is_set_by_one_side(self, name: str, tensors: list[Any], stand_ins: list[Any]) -> bool:
        """Whether one known side decides all of what is written; then it is remembered."""
        value = self._decided_by_one_side(name, tensors)
        if value is None or not stand_ins or stand_ins[0]._is_view():
            return False
        target = stand_ins[0]
        self.set(target, torch.full(target.shape, value, dtype=target.dtype))
        return True

    def _follow_in_place(
        self, operator: Operator, args: Any, kwargs: Any, tensors: list[Any], contents: list[Any]
    ) -> None:
        """Computes what an operator does to values in place; where it cannot, they are forgotten."""
        is_known = not operator.is_random and self._are_known(tensors)
        if not is_known or self._computed(operator, args, kwargs) is None:
            self._unknown.update(content.untyped_storage()._cdata for content in contents)

    def _follow_out(self, operator: Operator, args: Any, kwargs: Any, tensors: list[Any]) -> None:
        """Computes what an operator writes to tensors that it is given for its results (out=)."""
        outs = {name: kwargs[name] for name in operator.out_names}
        contents = {name: torch.empty(out.shape, dtype=out.dtype) for name, out in outs.items()}
        written = set(map(id, outs.values()))
        inputs = [tensor for tensor in tensors if id(tensor) not in written]
        is_done = self._can_compute(operator, inputs, tensors)
        if is_done:
            is_done = self._computed(operator, args, {**kwargs, **contents}) is not None
        for name, out in outs.items():
            self._forget(out)
            if is_done and not out._is_view():
                self.set(out, contents[name])

    def _can_compute(self, operator: Operator, inputs: list[Any], tensors: list[Any]) -> bool:
        """Whether the inputs of an operator are known, and all its tensors small."""
        is_small = all(map(self.is_worth, tensors))
        return is_small and not operator.is_random and self._are_known(inputs)

    def _forget(self, tensor: Any) -> None:
        content = self.of(tensor)
        if content is not None:
            self._unknown.add(content.untyped_storage()._cdata)

    def _filled(self, operator: Operator, target: Any, args: Any) -> None:
        numbers = args[1:]
        is_plain = not any(isinstance(number, torch.Tensor) for number in numbers)
        is_small = (
            target.nbytes <= _MOST_FLOAT_BYTES[True]
            if operator.is_random
            else self.is_worth(target)
        )
        if is_small and not target._is_view() and is_plain:
            content = torch.zeros(target.shape, dtype=target.dtype)
            with self._drawn(operator):
                self.set(target, operator.function(content, *numbers))

    def _computed(self, operator: Operator, args: Any, kwargs: Any) -> Any | None:
        try:
            with torch.no_grad(), self._drawn(operator):
                return operator.function(
                    *_replaced(args, self), **_on_cpu(_replaced_in(kwargs, self))
                )
        except UNABLE:
            return None

    def _drawn(self, operator: Operator) -> Any:
        """The card's own random numbers, where an operator draws some."""
        return self._card_numbers.drawn() if operator.is_random else contextlib.nullcontext()


def stated_size(operator: Operator, args: Any, kwargs: Any) -> int | None:
    """How large a program says that a result is whose size else hangs on values: so many repeats,
    or the counts of so many numbers at least, as those of classes.
    """
    if operator.name == "aten.repeat_interleave":
        size: int | None = kwargs.get("output_size")
        return size
    if operator.name == "aten.bincount" and len(args) > 2 and args[2] > 0:
        return max(int(args[2]), even_choices.choices_of(args[0]) or 0)
    return None


def is_even_count(operator: Operator, args: Any) -> bool:
    """Whether a result counts so many classes as the program says: as often each, so that a split by the
    counts has all that there is.
    """
    is_count = operator.name == "aten.bincount" and len(args) > 2
    return is_count and args[1] is None and args[2] > 0


def _selects_by_mask(operator: Operator, args: Any) -> bool:
    return operator.name == "aten.index" and any(
        isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        for index in args[1]
    )


def _finite(operator: Operator, args: Any) -> bool | None:
    """What a comparison says that asks whether numbers are finite (isnan, isfinite, isinf in
    TensorCompare.cpp).
    """
    if operator.name in ("aten.ne", "aten.eq") and len(args) > 1:
        is_equal = operator.name == "aten.eq"
        if args[0] is args[1]:
            return is_equal
        if isinstance(args[1], float) and math.isinf(args[1]):
            return not is_equal
    if operator.name in ("aten.isnan", "aten.isinf"):
        return False
    return None


def _listed(value: Any) -> list[Any]:
    """An operator's results as a list."""
    if isinstance(value, (tuple, list)):
        return list(value)
    return [value] if isinstance(value, torch.Tensor) else []


def _replaced(value: Any, values: KnownValues) -> Any:
    if isinstance(value, torch.Tensor):
        return values.of(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(part, values) for part in value)
    return value


def _replaced_in(kwargs: Any, values: KnownValues) -> dict[str, Any]:
    return {name: _replaced(argument, values) for name, argument in kwargs.items()}


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    return kwargs


def _is_below_one(name: str, args: Any, output: Any) -> bool:
    """Whether it is asked if a number is below a limit of one or more: made-up ones are, as when they
    are read. A solver's step is accepted so.
    """
    is_asked = name in even_choices.BELOW and output.dim() == 0 and args[0].is_floating_point()
    return is_asked and isinstance(args[1], (int, float)) and args[1] >= 1
