"""More made-up runs: leaks, and what looks like one, of shapes that ``leak_programs`` does not
have.

The truth of each is what a person who knows the program would say. A look-alike may be called
possible; never proven, and never likely (but where the program calls something else a step).
``sure`` of a leak says whether a recording of so many steps has evidence enough to call it so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from support.leak_programs import ADAM, CALL, LEAK_LINE, MAIN, Run, at
from support.oracle import MIB

MODEL = "/home/user/model.py"
PASS = (MAIN, at(20), CALL)
ENV = "/home/user/env.py"
INIT_GROUP = (ADAM[0], 142, "_init_group")


@dataclass(frozen=True)
class Attack:
    """What a run is.

    Attributes:
        leaks: whether it leaks.
        rates: by leaking line, bytes per step; None where they differ from seed to seed.
        sure: whether that must be proven or likely.
        never: of a look-alike, the least certain verdict that must not be given.
    """

    leaks: bool
    rates: dict[int, float | None]
    sure: bool = False
    never: str = "likely"


NO_LEAK = Attack(False, {})
Program = Callable[[Run], Attack]


def nothing(_: int) -> None:
    pass


def layered(run: Run, line: int, layers: int, *, keep: int = 0, each: int = 5) -> list[int]:
    """One pass through alike layers, all from one line of the model; the first ``keep`` blocks
    of each layer stay.
    """
    kept = []
    for _ in range(layers):
        own = [run.new(65536 * (1 + n), MAIN, at(line, "run"), CALL, (MODEL, 8, "forward"), CALL, (MODEL, 40 + n, "forward"))
               for n in range(each)]  # fmt: skip
        kept += own[:keep]
        for address in own[keep:]:
            run.free(address)
    return kept


# What looks like a leak


def env_step(run: Run, bound: int | None, *, end: bool = False) -> None:
    held = deque[int]()
    run.setup()
    for step in range(60):
        run.step(nothing, step)
        for n in range(3):
            held.append(run.new(4096 * (1 + n), MAIN, at(70), (ENV, 12 + n, "step")))
        while bound is not None and len(held) > 3 * bound:
            run.free(held.popleft())
    if end:
        run.finish(held)


def replay_buffer(run: Run) -> Attack:
    """Observations, rewards and flags of an environment, up to 10,000 of each."""
    env_step(run, None)
    return NO_LEAK


def replay_buffer_to_the_end(run: Run) -> Attack:
    env_step(run, None, end=True)
    return NO_LEAK


def replay_buffer_that_turns(run: Run) -> Attack:
    env_step(run, 20)
    return NO_LEAK


def ring(length: int, steps: int, *, end: bool) -> Program:
    def program(run: Run) -> Attack:
        run.setup()
        held = deque[int]()
        for step in range(steps):
            run.step(lambda _: held.append(run.new(MIB, MAIN, at(54))), step)
            if len(held) > length:
                run.free(held.popleft())
        if end:
            run.finish(held)
        return NO_LEAK

    return program


def outputs_of_an_epoch(run: Run) -> Attack:
    """A list that is joined and emptied at the epoch's end; the recording ends there."""
    run.setup()
    held: list[int] = []
    for step in range(30):
        run.step(lambda _: held.append(run.new(MIB, MAIN, at(53))), step)
    joined = run.new(30 * MIB, MAIN, at(80))
    for address in reversed(held):
        run.free(address)
    run.free(joined)
    return NO_LEAK


def tokens(run: Run, *, marks: bool, end: bool) -> Attack:
    """Keys and values of each layer stay until the text ends; nothing else does. No optimizer."""
    run.setup()
    held: list[int] = []
    run.marks = marks
    for _ in range(48):
        batch = run.new(2048, MAIN, at(71, "run"))
        held += layered(run, 72, 6, keep=2)
        run.free(batch)
        if marks:
            run.time += 1
            run.notes.append(
                {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": run.time}
            )
    if end:
        run.finish(reversed(held))
    return NO_LEAK


def joined_cache(run: Run) -> Attack:
    """The same, joined to one tensor a layer, made anew for each token."""
    run.setup()
    held = [[run.new(4096, MAIN, at(75, "run")) for _ in range(2)] for _ in range(6)]
    for step in range(1, 60):
        for layer in range(6):
            for n in range(2):
                part = run.new(4096, MAIN, at(72, "run"), CALL, (MODEL, 60 + n, "forward"))
                fresh = run.new(
                    4096 * (step + 1), MAIN, at(72, "run"), CALL, (MODEL, 62 + n, "forward")
                )
                run.free(held[layer][n])
                run.free(part)
                held[layer][n] = fresh
    return NO_LEAK


def layers_until_it_fails(run: Run) -> Attack:
    """A ring so short that it holds no more than the layers of the pass that failed."""
    run.setup()
    run.events.clear()
    layered(run, 72, 24, keep=5)
    run.tell("oom", 0, 64 * MIB, (MAIN, at(72, "run"), CALL, (MODEL, 8, "forward"), CALL, (MODEL, 41, "forward")),
             device_free=0)  # fmt: skip
    return NO_LEAK


def first_pass_fails(run: Run) -> Attack:
    """The whole recording: a model is built, its first pass does not fit."""
    run.setup()
    run.new(MIB, MAIN, at(71, "run"))
    layered(run, 72, 40, keep=5)
    run.tell("oom", 0, 64 * MIB, (MAIN, at(72, "run"), CALL, (MODEL, 8, "forward"), CALL, (MODEL, 41, "forward")),
             device_free=0)  # fmt: skip
    return NO_LEAK


def micro_batches(run: Run) -> Attack:
    """A pipeline: many forward passes wait for their backward passes; the ring has forgotten
    what was before.
    """
    run.setup()
    run.events.clear()
    for _ in range(14):
        run.new(8192, MAIN, at(76, "run"))
        for n in range(6):
            run.new(131072 * (1 + n), MAIN, at(77, "run"), CALL, (MODEL, 30 + n, "forward"))
    return NO_LEAK


def marked_micro_batches(run: Run) -> Attack:
    """The program calls each of 32 micro-batches a step; their graphs wait for one backward
    pass.
    """
    micro_batches(run)
    for number in range(1, 14):
        run.notes.append(
            {
                "stage": "END",
                "name": "vramlens.step",
                "device": 0,
                "time_us": run.events[7 * number]["time_us"] - 1,
            }
        )
    return Attack(False, {}, never="proven")


def rollout(run: Run) -> Attack:
    """One policy step after another, kept until the update, which is still to come."""
    run.setup()
    for _ in range(100):
        temporary = [
            run.new(65536, MAIN, at(78, "run"), CALL, (MODEL, 30 + n, "forward")) for n in range(9)
        ]
        for n in range(3):
            run.new(4096, MAIN, at(78, "run"), CALL, (MODEL, 50 + n, "forward"))
        run.new(8192, MAIN, at(79, "run"), (ENV, 12, "step"))
        for address in temporary:
            run.free(address)
    return NO_LEAK


def predictions(run: Run) -> Attack:
    """Inference over a data set: results are collected, then joined; the model goes at the end."""
    run.setup()
    held: list[int] = []
    for _ in range(40):
        batch = run.new(65536, MAIN, at(71, "run"))
        layered(run, 72, 4)
        held.append(run.new(16384, MAIN, at(73, "run")))
        run.free(batch)
    joined = run.new(40 * 16384, MAIN, at(74, "run"))
    for address in reversed(held):
        run.free(address)
    run.free(joined)
    run.finish()
    return NO_LEAK


def cache_by_length_and_layer(run: Run) -> Attack:
    """Four alike tables for each new bucket of lengths."""
    run.setup()
    seen = set[int]()
    for step in range(30):
        bucket = run.random.randrange(60) if step > 9 else step

        def extra(_: int, bucket: int = bucket) -> None:
            if bucket not in seen:
                seen.add(bucket)
                for _ in range(4):
                    run.new(512 * (bucket + 1), MAIN, at(20), CALL, (MODEL, 80, "table"))

        run.step(extra, step)
    return NO_LEAK


def prototypes(run: Run) -> Attack:
    """One of 200 alike entries a step, in the order of the classes."""
    run.setup()
    for step in range(40):
        run.step(
            lambda _: run.new(65536, MAIN, at(20), CALL, (MODEL, 81, "prototype")) and None, step
        )
    return NO_LEAK


def unfrozen(run: Run) -> Attack:
    """A layer more is trained every second step: its gradients and its optimizer's state come to
    stay.
    """
    run.setup()
    adam = ("/usr/lib/python3.11/site-packages/torch/optim/adamw.py", 226, "step")
    for step in range(40):
        run.step(nothing, step)
        if step % 2 and step < 32:
            run.new(MIB)
            for _ in range(2):
                run.new(MIB, MAIN, at(24), adam)
    return NO_LEAK


def lazy_parts(run: Run) -> Attack:
    """Parts that are built when they are first used, each from a line of its own."""
    run.setup()
    for step in range(40):

        def extra(step: int) -> None:
            if step < 12:
                run.new(MIB, MAIN, at(20), CALL, (MODEL, 100 + step, "build"))

        run.step(extra, step)
    return NO_LEAK


def average_begins_late(run: Run) -> Attack:
    run.setup()
    held: list[int] = []
    for step in range(40):
        run.step(nothing, step)
        if step >= 25:
            fresh = [run.new(2 * MIB, MAIN, at(57)) for _ in range(4)]
            for address in held:
                run.free(address)
            held = fresh
    return NO_LEAK


def validation(run: Run) -> Attack:
    """Every tenth step: outputs of many batches are kept until their metric is known."""
    run.setup()

    def extra(step: int) -> None:
        if step % 10 == 9:
            held = []
            for _ in range(12):
                layered(run, 90, 4)
                held.append(run.new(65536, MAIN, at(91)))
            for address in held:
                run.free(address)

    for step in range(60):
        run.step(extra, step)
    return NO_LEAK


def longest_comes_late(run: Run) -> Attack:
    run.varlen = True
    run.setup()
    for step in range(40):
        run.step(nothing, step)
        if step == 35:
            run.layers = [
                (*stack[:-1], (MODEL, 30 + n, "forward")) for n, stack in enumerate(run.layers)
            ] * 4
        elif step == 36:
            run.layers = run.layers[:6]
    return NO_LEAK


def rate_of_learning(run: Run) -> Attack:
    """A small tensor of the scheduler's, made anew every fifth step; some old ones wait for the
    collector.
    """
    run.setup()
    held: list[int] = []
    for step in range(60):
        run.step(nothing, step)
        if step % 5 == 0:
            held.append(run.new(512, MAIN, at(92)))
        if len(held) == 4:
            for address in held[:3]:
                run.free(address)
            held = held[3:]
    return NO_LEAK


def graphs_captured(run: Run) -> Attack:
    """A server that captures one CUDA graph after another, each in a pool of its own."""
    run.setup()
    for number in range(20):
        address = (1 << 42) + number * 64 * MIB
        pool = {"pool_id": (0, number + 1), "segment_pool_id": (0, number + 1)}
        run.tell("segment_alloc", address, 20 * MIB, (MAIN, at(93, "run")), **pool)
        run.pools.append((address, 20 * MIB, (0, number + 1)))
        for n in range(6):
            run.tell(
                "alloc",
                address + n * MIB,
                MIB,
                (MAIN, at(93, "run"), CALL, (MODEL, 30 + n, "forward")),
                **pool,
            )
        for n in range(6):
            run.tell("free_requested", address + n * MIB, MIB, **pool)
            run.tell("free_completed", address + n * MIB, MIB, **pool)
        run.time += 1
        run.notes.append(
            {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": run.time}
        )
    return NO_LEAK


def streams_in_turn(run: Run) -> Attack:
    """Six streams take turns: each is used again before long."""
    run.setup()

    def extra(step: int) -> None:
        stream, address = 0x7000 + step % 6, (1 << 42) + step % 6 * 32 * MIB
        if step < 6:
            run.reserve(address, 20 * MIB, stream)
        for action in ("alloc", "free_requested", "free_completed"):
            run.tell(action, address, 20 * MIB, (MAIN, at(65)), stream=stream)

    for step in range(30):
        run.step(extra, step)
    return NO_LEAK


# Leaks


def every_third(run: Run) -> Attack:
    """A whole pass without a backward pass, every third step."""
    run.setup()

    def extra(step: int) -> None:
        if step % 3 == 2:
            for n in range(6):
                run.new(MIB, MAIN, at(LEAK_LINE), CALL, (MODEL, 30 + n, "forward"))

    for step in range(45):
        run.step(extra, step)
    return Attack(True, {LEAK_LINE: 2 * MIB}, sure=True)


def kept_trials(run: Run) -> Attack:
    """Models trained one after the other, each kept with its optimizer's state; half of the bytes
    are that state.
    """
    run.marks = True
    run.setup()
    held: list[int] = []

    def extra(step: int) -> None:
        if step % 6 == 0:
            held.append(run.new(8 * MIB, MAIN, at(LEAK_LINE)))
            held.append(run.new(8 * MIB, MAIN, at(24), INIT_GROUP))

    for step in range(96):
        run.step(extra, step)
    run.finish(reversed(held))
    return Attack(True, {LEAK_LINE: 8 * MIB / 6, 24: 8 * MIB / 6}, sure=True)


def state_of_parts(run: Run) -> Attack:
    """Parts of a model that get their first gradient one after the other, every sixth step."""
    run.marks = True
    run.setup()

    def extra(step: int) -> None:
        if step % 6 == 0:
            run.new(8 * MIB, MAIN, at(24), INIT_GROUP)

    for step in range(96):
        run.step(extra, step)
    return NO_LEAK


def growing_sizes(run: Run) -> Attack:
    """Each step keeps a little more than the one before."""
    run.setup()
    held = []
    for step in range(30):
        run.step(lambda s: held.append(run.new(4096 * (s + 1), MAIN, at(LEAK_LINE))), step)
    run.finish(reversed(held))
    return Attack(True, {LEAK_LINE: None})


def two_at_one_line(run: Run) -> Attack:
    """``self.a.append(f(x)); self.b.append(g(x))`` on one line."""
    run.setup()
    held = []
    for step in range(20):
        run.step(nothing, step)
        held.append(run.new(MIB, MAIN, at(LEAK_LINE), (MODEL, 60, "f")))
        held.append(run.new(3 * MIB, MAIN, at(LEAK_LINE), (MODEL, 61, "g")))
    run.finish(reversed(held))
    return Attack(
        True, {LEAK_LINE: 4 * MIB}, sure=True
    )  # the innermost line that both have in common


def only_in_evaluation(run: Run) -> Attack:
    """Every fourth step an evaluation keeps five losses with their graphs."""
    run.setup()

    def extra(step: int) -> None:
        if step % 4 == 3:
            for _ in range(5):
                for n in range(6):
                    run.new(
                        MIB,
                        MAIN,
                        at(94, "evaluate"),
                        (MODEL, LEAK_LINE, "loss"),
                        CALL,
                        (MODEL, 30 + n, "forward"),
                    )

    for step in range(60):
        run.step(extra, step)
    return Attack(True, {LEAK_LINE: 7.5 * MIB}, sure=True)


def beside_a_ring(run: Run) -> Attack:
    """One line makes two results a step: one goes through a ring of four, the other stays."""
    run.setup()
    turning, held = deque[int](), []
    for step in range(40):
        run.step(nothing, step)
        turning.append(run.new(MIB, MAIN, at(LEAK_LINE)))
        held.append(run.new(MIB, MAIN, at(LEAK_LINE)))
        if len(turning) > 4:
            run.free(turning.popleft())
    run.finish([*turning, *reversed(held)])
    return Attack(True, {LEAK_LINE: MIB})


def through_accumulation(run: Run) -> Attack:
    """Four micro-batches a step; the loss of each stays, and what the hook took from a middle
    layer.
    """
    run.setup()
    stack = (MAIN, at(20), CALL, (MODEL, 8, "forward"), CALL, (MODEL, LEAK_LINE, "forward"))

    def extra(_: int) -> None:
        run.new(MIB, *stack)
        for address in [run.new(MIB, *stack) for _ in range(3)]:
            run.free(address)

    for step in range(14):
        run.step(extra, step, micro=4)
    return Attack(True, {LEAK_LINE: 4 * MIB}, sure=True)


def in_every_batch_of_any_length(run: Run) -> Attack:
    """Kept graphs of batches of differing lengths."""
    run.varlen = True
    run.setup()

    def extra(_: int) -> None:
        for n in range(6):
            run.new(
                2048 * run.scale * (1 + n), MAIN, at(LEAK_LINE), CALL, (MODEL, 30 + n, "forward")
            )

    for step in range(30):
        run.step(extra, step)
    return Attack(True, {LEAK_LINE: None}, sure=True)


def caught_at_random(run: Run) -> Attack:
    """A third of the steps raise in the middle of the pass; the exceptions are kept."""
    run.setup()

    def extra(step: int) -> None:
        if run.random.random() < 0.35:
            for n in range(5):
                run.new(MIB, MAIN, at(LEAK_LINE), CALL, (MODEL, 30 + n, "forward"))

    for step in range(120):
        run.step(extra, step)
    return Attack(True, {LEAK_LINE: None}, sure=True)


def cycles_that_outlive(run: Run) -> Attack:
    """Collected by nobody: the model goes, they stay."""
    run.setup()
    for step in range(12):
        run.step(lambda _: run.new(MIB, MAIN, at(LEAK_LINE)) and None, step)
    run.finish()
    return Attack(True, {LEAK_LINE: MIB}, sure=True)


def list_to_the_end(run: Run) -> Attack:
    run.setup()
    held: list[int] = []
    for step in range(12):
        run.step(lambda _: held.append(run.new(512, MAIN, at(LEAK_LINE))), step)
    run.finish(reversed(held))
    return Attack(True, {LEAK_LINE: 512}, sure=True)


def list_of_each_layer(run: Run) -> Attack:
    """``self.seen.append(x)`` in each of eight layers; the lists go with the model."""
    run.setup()
    seen: list[list[int]] = [[] for _ in range(8)]
    stack = (MAIN, at(20), CALL, (MODEL, 8, "forward"), CALL, (MODEL, LEAK_LINE, "forward"))
    for step in range(12):

        def extra(_: int) -> None:
            for held in seen:
                held.append(run.new(MIB, *stack))

        run.step(extra, step)
    run.finish([address for held in seen for address in reversed(held)])
    return Attack(True, {LEAK_LINE: 8 * MIB}, sure=True)


def ring_of_each_layer(run: Run) -> Attack:
    """``deque(maxlen=64)`` in each of eight layers."""
    run.setup()
    seen: list[list[int]] = [[] for _ in range(8)]
    stack = (MAIN, at(20), CALL, (MODEL, 8, "forward"), CALL, (MODEL, 44, "forward"))
    for step in range(30):

        def extra(_: int) -> None:
            for held in seen:
                held.append(run.new(MIB, *stack))

        run.step(extra, step)
    run.finish([address for held in seen for address in held])
    return NO_LEAK


def for_a_long_time(run: Run) -> Attack:
    """One result a step, of which a long run shows no end."""
    run.setup()
    for step in range(150):
        run.step(lambda _: run.new(MIB, MAIN, at(LEAK_LINE)) and None, step)
    return Attack(True, {LEAK_LINE: MIB}, sure=True)


def until_it_failed(run: Run) -> Attack:
    """One result a step, until they had taken most of the memory."""
    run.setup()
    for step in range(12):
        run.step(lambda _: run.new(8 * MIB, MAIN, at(LEAK_LINE)) and None, step)
    run.tell("oom", 0, 64 * MIB, (MAIN, at(LEAK_LINE)), device_free=0)
    return Attack(True, {LEAK_LINE: 8 * MIB}, sure=True)


def inference_that_keeps_graphs(run: Run) -> Attack:
    """A server without no_grad, and without an optimizer, that keeps its results."""
    run.setup()
    for _ in range(14):
        batch = run.new(8192, MAIN, at(76, "run"))
        for n in range(6):
            run.new(131072, MAIN, at(LEAK_LINE, "run"), CALL, (MODEL, 30 + n, "forward"))
        run.free(batch)
    return Attack(True, {LEAK_LINE: None}, sure=True)


LOOK_ALIKES: dict[str, Program] = {
    "replay buffer": replay_buffer,
    "replay buffer to the end": replay_buffer_to_the_end,
    "replay buffer that turns": replay_buffer_that_turns,
    "ring of 64, 40 steps": ring(64, 40, end=False),
    "ring of 64, 40 steps, to the end": ring(64, 40, end=True),
    "ring of 64, 63 steps": ring(64, 63, end=False),
    "ring of 100, 99 steps": ring(100, 99, end=False),
    "ring of 1000, 400 steps": ring(1000, 400, end=True),
    "ring of each layer": ring_of_each_layer,
    "outputs of an epoch": outputs_of_an_epoch,
    "tokens": lambda run: tokens(run, marks=False, end=False),
    "tokens to the end": lambda run: tokens(run, marks=False, end=True),
    "tokens with steps": lambda run: tokens(run, marks=True, end=False),
    "joined cache": joined_cache,
    "layers until it fails": layers_until_it_fails,
    "first pass fails": first_pass_fails,
    "micro-batches": micro_batches,
    "marked micro-batches": marked_micro_batches,
    "rollout": rollout,
    "predictions": predictions,
    "cache by length and layer": cache_by_length_and_layer,
    "prototypes": prototypes,
    "unfrozen": unfrozen,
    "lazy parts": lazy_parts,
    "state of parts": state_of_parts,
    "average begins late": average_begins_late,
    "validation": validation,
    "longest comes late": longest_comes_late,
    "rate of learning": rate_of_learning,
    "graphs captured": graphs_captured,
    "streams in turn": streams_in_turn,
}
LEAKS: dict[str, Program] = {
    "every third": every_third,
    "kept trials": kept_trials,
    "growing sizes": growing_sizes,
    "two at one line": two_at_one_line,
    "only in evaluation": only_in_evaluation,
    "beside a ring": beside_a_ring,
    "through accumulation": through_accumulation,
    "in every batch of any length": in_every_batch_of_any_length,
    "caught at random": caught_at_random,
    "cycles that outlive": cycles_that_outlive,
    "list to the end": list_to_the_end,
    "list of each layer": list_of_each_layer,
    "for a long time": for_a_long_time,
    "until it failed": until_it_failed,
    "inference that keeps graphs": inference_that_keeps_graphs,
}
