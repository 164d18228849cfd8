"""The model and the optimizer that a guard is given: refused where they are something else, and what they
train.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramlens.errors import UsageError

if TYPE_CHECKING:
    import torch


def refuse_wrong_arguments(model: object, optimizer: object) -> None:
    """Raises UsageError for what is not a model or not an optimizer; the text says what it is."""
    if not hasattr(model, "named_parameters"):
        hint = ": swapped?" if hasattr(optimizer, "named_parameters") else ", not a model"
        raise UsageError(f"guard(model, optimizer): the first is {_with_article(model)}{hint}")
    if optimizer is None or hasattr(optimizer, "param_groups"):
        return
    hint = ""
    if isinstance(optimizer, (list, tuple, dict)):
        hint = ": with several optimizers, use guard(model, None) and step them after guard.step"
    raise UsageError(
        f"guard(model, optimizer): the second is {_with_article(optimizer)}, not an optimizer{hint}"
    )


def _with_article(thing: object) -> str:
    """The type's name with its article: ``an SGD``, ``a generator``."""
    name = type(thing).__name__
    is_spelled_out = name[0] in "AEIOU" or name[:2].isupper()
    return f"{'an' if is_spelled_out else 'a'} {name}"


class TrainedParameters:
    """The parameters that require a gradient, of the model and of the optimizer.

    Attributes:
        named: with their names.
        parameters: without.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model = model
        self._optimizer = optimizer
        self.named: list[tuple[str, torch.nn.Parameter]] = []
        self.parameters: list[torch.nn.Parameter] = []
        self.find()

    def find(self) -> None:
        """Fills both lists, in place: parameters may be frozen and unfrozen."""
        named = self._model.named_parameters()
        self.named[:] = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        listed = {id(parameter) for _, parameter in self.named}
        for parameter in self._of_optimizer():
            # A loss's own: its gradient is rolled back as well.
            if parameter.requires_grad and id(parameter) not in listed:
                listed.add(id(parameter))
                self.named.append(("a parameter of the optimizer", parameter))
        self.parameters[:] = [parameter for _, parameter in self.named]

    @property
    def are_foreign(self) -> bool:
        """True where the optimizer has none of the model's parameters."""
        of_model = {id(parameter) for parameter in self._model.parameters()}
        return of_model.isdisjoint(id(parameter) for parameter in self._of_optimizer())

    def _of_optimizer(self) -> Iterator[torch.nn.Parameter]:
        groups = () if self._optimizer is None else self._optimizer.param_groups
        for group in groups:
            yield from group["params"]
