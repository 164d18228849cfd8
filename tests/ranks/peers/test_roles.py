"""Roles: ranks that run other programs than each other differ by nature, and are compared with the
ranks of their role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from support.summaries import STEPS, layers, line, named_causes, rank_of, with_lines
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.peers.rank_cohorts import PROGRAMS, cohorts_of
from vramlens.ranks.peers.roles import roles_of_calls, roles_of_code
from vramlens.ranks.rank_summary import FrameUse, LineUse, RankGrowth
from vramlens.units import GIB, MIB

WORLD = 8
ROLES = {"actors": (0, 1, 2), "critics": (3, 4), "references": (5, 6), "rewards": (7,)}
SIZES = {"actors": 900 * MIB, "critics": 700 * MIB, "references": 800 * MIB, "rewards": 90 * MIB}
LAUNCH, MODEL = "rl/launch.py", "rl/lm.py"


def frames(*files: str, shares: Mapping[str, float] | None = None) -> tuple[FrameUse, ...]:
    """Callers in some files, the outermost first; all that is requested goes through each, or a
    share of it.
    """
    uses = [
        FrameUse(Place(file, 5, "run"), depth, int((shares or {}).get(file, 1.0) * GIB), 0, 0)
        for depth, file in enumerate(files)
    ]
    return tuple(sorted(uses, key=lambda frame: -frame.total_bytes))


def lines_of(role: str) -> list[LineUse]:
    """A model of the role's own, and what it computes."""
    place = Place(f"rl/{role}.py", 24, "build")
    weights = replace(line(24, "parameters", 1, SIZES[role], phase="other"), place=place)
    trains = role in ("actors", "critics")
    return [
        weights,
        *(layers(2, 2) if trains else [line(12, "temporaries", 1, 50 * MIB, per_step=1)]),
    ]


def job(*, grouped: bool = True) -> list[RankSummary]:
    """Four roles: each has its file and, unless it is one rank, its process group."""
    ranks = []
    for role, members in ROLES.items():
        span = (members[0], len(members), 1)
        groups = [("default_pg", ((0, WORLD, 1),)), (role, (span,))][: 1 + grouped]
        for rank in members:
            summary = rank_of(rank, WORLD, lines_of(role), recomputed_bytes=0)
            callers = frames(LAUNCH, f"rl/{role}.py", MODEL, shares={MODEL: 0.4})
            ranks.append(replace(summary, frames=callers, groups=tuple(groups)))
    return ranks


def leaking(rank: RankSummary, size: int, file: str = "rl/gae.py") -> RankSummary:
    place = Place(file, 42, "advantages")
    kept = replace(line(42, "other", STEPS, size, per_step=1), place=place)
    growth = RankGrowth(Verdict.LIKELY, place, size, (STEPS - 1) * size, STEPS - 1, None)
    own = with_lines(rank, kept)
    return replace(own, frames=rank.frames, groups=rank.groups, leaks=(growth,))


@pytest.mark.parametrize("grouped", [True, False])
def test_what_roles_hold_is_no_difference(grouped: bool) -> None:
    """Without groups it is also known by those that do not train."""
    answer = compare(job(grouped=grouped))
    assert answer.cohorts.members == tuple(ROLES.values())
    assert answer.cohorts.source == PROGRAMS
    assert answer.differences == ()
    assert answer.notes[:1] == (
        "the ranks do 4 kinds of work (ranks 0-2; ranks 3-4; ranks 5-6; rank 7), told by the code that"
        " they run: each rank is compared with those that do the same",
    )


def test_a_rank_that_differs_from_its_role_is_told() -> None:
    ranks = job()
    second_model = replace(
        line(29, "other", 1, 400 * MIB), place=Place("rl/actors.py", 29, "build")
    )
    odd = with_lines(ranks[1], second_model)
    ranks[1] = replace(odd, frames=ranks[1].frames, groups=ranks[1].groups)
    ranks[4] = leaking(ranks[4], 20 * MIB)
    answer = compare(ranks)
    assert named_causes(answer) == [((1,), "rank_only"), ((4,), "leak")]
    assert [told.bytes for told in answer.differences] == [400 * MIB, 20 * STEPS * MIB]


@pytest.mark.parametrize("role", ["actors", "references", "rewards"])
def test_a_leak_of_a_role_is_told_with_all_its_ranks(role: str) -> None:
    ranks = [leaking(rank, 20 * MIB) if rank.rank in ROLES[role] else rank for rank in job()]
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.bytes) == (ROLES[role], "leak", 20 * STEPS * MIB)


def test_a_leak_that_most_ranks_share_is_told_once() -> None:
    ranks = [leaking(rank, 20 * MIB) if rank.rank < 5 else rank for rank in job()]
    answer = compare(ranks)
    assert answer.differences == ()
    (shared,) = answer.shared
    assert shared.title.startswith("5 of 8 ranks have the same leak")


def test_a_leak_of_one_role_is_its_own_where_most_ranks_have_that_role() -> None:
    """Three of four ranks are actors: the critic does not leak."""
    ranks = [leaking(rank, 20 * MIB) if rank.rank < 3 else rank for rank in job()[:4]]
    answer = compare([replace(rank, world_size=4) for rank in ranks])
    assert answer.cohorts.members == ((0, 1, 2), (3,))
    assert named_causes(answer) == [((0, 1, 2), "leak")]
    assert answer.shared == ()


def test_two_of_three_actors_that_leak_are_told() -> None:
    ranks = [leaking(rank, (20 + rank.rank) * MIB) if rank.rank < 2 else rank for rank in job()]
    assert named_causes(compare(ranks)) == [((0, 1), "leak")]


def test_steps_are_compared_within_a_role() -> None:
    """Actors generate and train; critics wait for them."""
    times = (14, 14, 14, 6, 6, 6, 6, 6)
    ranks = [replace(rank, step_us=1000 * times[rank.rank]) for rank in job()]
    assert not [note for note in compare(ranks).notes if "longer for a step" in note]
    ranks[2] = replace(ranks[2], step_us=20_000)
    (note,) = [note for note in compare(ranks).notes if "longer for a step" in note]
    assert note.startswith("rank 2 takes longer for a step")


def test_replicas_within_a_role_are_compared_with_each_other() -> None:
    """Actors divide their model into two parts, each with a replica."""
    ranks = []
    for rank in job()[:3] + job()[:1] + job()[3:5]:
        number = len(ranks)
        pair = (number % 2, 2, 2) if number < 4 else (4, 2, 1)
        group = ("actor_dp" if number < 4 else "critic_dp", (pair,))
        ranks.append(replace(rank, rank=number, world_size=6, groups=(group,)))
    assert cohorts_of(ranks, {}).members == ((0, 2), (1, 3), (4, 5))


def hosts(callers: Sequence[tuple[FrameUse, ...]]) -> list[RankSummary]:
    """Equal trainers of two hosts, each with a process group."""
    return [
        replace(
            rank_of(rank, 4, layers(2, 2), recomputed_bytes=0),
            frames=callers[rank // 2],
            groups=((f"node{rank // 2}", ((rank // 2 * 2, 2, 1),)),),
        )
        for rank in range(4)
    ]


def test_what_one_group_does_beside_the_work_of_all_is_no_role() -> None:
    """A host debugs: even nearly all that it requests is through a file that the other has not."""
    usual = frames("train.py", MODEL)
    ranks = hosts([usual, (*usual, *frames("debug.py", shares={"debug.py": 0.9}))])
    for at in (2, 3):
        watch = replace(line(52, "other", 1, 300 * MIB), place=Place("debug.py", 52, "watch"))
        odd = with_lines(ranks[at], watch)
        ranks[at] = replace(odd, frames=ranks[at].frames, groups=ranks[at].groups)
    assert cohorts_of(ranks, {}).source != PROGRAMS
    assert named_causes(compare(ranks)) == [((2, 3), "rank_only")]


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9])
def test_other_files_of_a_part_of_the_work_are_no_roles(share: float) -> None:
    """Another attention on each host: nearly all is requested through a program."""
    own = [
        tuple(
            sorted(
                (*frames("train.py"), *frames(file, shares={file: share})),
                key=lambda frame: -frame.total_bytes,
            )
        )
        for file in ("flash.py", "math.py")
    ]
    assert (cohorts_of(hosts(own), {}).source == PROGRAMS) == (share == 0.9)


def test_a_call_through_which_nearly_all_comes_tells_roles_without_groups() -> None:
    """Of several ranks each, or of two; a rank alone among others may be at fault."""
    ranks = [replace(rank, groups=()) for rank in hosts([frames("a.py"), frames("b.py")])]
    assert roles_of_calls(ranks) == ((0, 1), (2, 3))
    assert cohorts_of(ranks, {}).source == PROGRAMS
    two = [replace(rank, rank=at) for at, rank in enumerate(ranks[1:3])]
    assert cohorts_of(two, {}).members == ((0,), (1,))
    assert roles_of_calls(ranks[:3]) == ()
    computing_again = [replace(ranks[0], recomputed_bytes=1 << 30), *ranks[1:]]
    assert roles_of_calls(computing_again) == ()


def test_a_rank_that_also_calls_the_code_of_another_role_keeps_its_own() -> None:
    """An actor loads a second reference model; another one's callers are more."""
    ranks = job()
    ranks[1] = replace(ranks[1], frames=frames(LAUNCH, "rl/actors.py", "rl/references.py",
                                               shares={"rl/references.py": 0.2}))  # fmt: skip
    ranks[2] = replace(ranks[2], frames=frames(LAUNCH, "rl/actors.py", "rl/probe.py"))
    assert roles_of_code(ranks) == tuple(ROLES.values())


def test_recordings_without_ranks_that_may_be_of_several_jobs_are_not_compared() -> None:
    ranks = [
        replace(rank, world_size=None, groups=(), source=f"made/{rank.rank}.pickle", device=0)
        for rank in job(grouped=False)
    ]
    answer = compare(ranks)
    assert answer.is_no_job
    assert not [note for note in answer.notes if "kinds of work" in note]


def test_very_many_programs_are_no_roles() -> None:
    ranks = [replace(job()[0], rank=at, frames=frames(f"{at}.py")) for at in range(80)]
    assert roles_of_code(ranks) == ()
    assert roles_of_code(ranks[:8]) == tuple((at,) for at in range(8))
    assert roles_of_code([replace(rank, frames=()) for rank in ranks]) == ()
