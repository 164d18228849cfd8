"""Which parameters ranks train, beside each other: those of one name and size that others keep frozen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from vramlens.ranks.parameter_groups import DIGEST_MODULUS, modules_of
from vramlens.ranks.rank_summary import ParameterGroup, RankSummary

_FROZEN, _STEPPED = "frozen", "stepped"
_Parameters = tuple[ParameterGroup, ...]


@dataclass(frozen=True, slots=True)
class OtherTraining:
    """Parameters that require gradients on a rank and not on a typical one, or the other way round.

    Attributes:
        count, bytes: of them; negative where a typical rank trains them.
        stepped_bytes: of those, in an optimizer.
        groups: of this rank's, that they are in; the largest first.
    """

    count: int
    bytes: int
    stepped_bytes: int
    groups: tuple[ParameterGroup, ...]


@dataclass(frozen=True, slots=True, order=True)
class _Trained:
    """Of the parameters of modules of one name: what requires gradients, and what is stepped."""

    bytes: int = 0
    count: int = 0
    stepped_bytes: int = 0


class UsualTraining:
    """What is usual among some ranks: which of their parameters require gradients.

    Most ranks have equal groups, and all is worked out once for those.
    """

    def __init__(self, ranks: Sequence[RankSummary]) -> None:
        by_part: dict[tuple[str, int], list[_Trained]] = defaultdict(list)
        for parameters, count in Counter(rank.parameters for rank in ranks).items():
            for modules, groups in _by_modules(parameters).items():
                by_part[modules, _digest(groups)] += [_trained(groups)] * count
        self._usual = {
            part: sorted(trained)[(len(trained) - 1) // 2]
            for part, trained in by_part.items()
            if 2 * len(trained) >= len(ranks)
        }
        self._others: dict[_Parameters, OtherTraining | None] = {}

    def beside(self, rank: RankSummary) -> OtherTraining | None:
        """The parameters that a rank trains and a typical one keeps frozen, or the other way round.
        None where there are none; nor where there are some of both: each trains its own part, as
        the players of a game do. Parameters of other names or sizes have no part in it.
        """
        if rank.parameters not in self._others:
            self._others[rank.parameters] = self._of(rank.parameters)
        return self._others[rank.parameters]

    def _of(self, parameters: _Parameters) -> OtherTraining | None:
        by_modules = _by_modules(parameters).values()
        parts = [part for part in map(self._part, by_modules) if part is not None]
        if len({part.bytes > 0 for part in parts}) != 1:
            return None
        groups = chain.from_iterable(part.groups for part in parts)
        return OtherTraining(
            count=sum(part.count for part in parts),
            bytes=sum(part.bytes for part in parts),
            stepped_bytes=sum(part.stepped_bytes for part in parts),
            groups=tuple(sorted(groups, key=lambda group: -group.bytes)),
        )

    def _part(self, groups: Sequence[ParameterGroup]) -> OtherTraining | None:
        """The same of modules of one name; None where a typical rank trains as much of them."""
        trained = _trained(groups)
        usual = self._usual.get((modules_of(groups[0]), _digest(groups)))
        if usual is None or usual.bytes == trained.bytes:
            return None
        is_more = trained.bytes > usual.bytes
        return OtherTraining(
            count=trained.count - usual.count,
            bytes=trained.bytes - usual.bytes,
            stepped_bytes=trained.stepped_bytes - usual.stepped_bytes,
            groups=tuple(group for group in groups if (group.use != _FROZEN) == is_more),
        )


def _by_modules(parameters: _Parameters) -> dict[str, list[ParameterGroup]]:
    by_modules: dict[str, list[ParameterGroup]] = defaultdict(list)
    for group in parameters:
        by_modules[modules_of(group)].append(group)
    return by_modules


def _digest(groups: Sequence[ParameterGroup]) -> int:
    """The digest of the parameters of all uses: equal where names and sizes are."""
    return sum(group.digest for group in groups) % DIGEST_MODULUS


def _trained(groups: Sequence[ParameterGroup]) -> _Trained:
    trained = [group for group in groups if group.use != _FROZEN]
    return _Trained(
        bytes=sum(group.bytes for group in trained),
        count=sum(group.count for group in trained),
        stepped_bytes=sum(group.bytes for group in trained if group.use == _STEPPED),
    )
