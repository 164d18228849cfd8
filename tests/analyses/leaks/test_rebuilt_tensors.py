"""Memory that a line replaces, and of which more remains at the end of each step."""

from __future__ import annotations

from support.leak_programs import LEAK_LINE, MAIN, Run, at
from support.oracle import MIB
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.leaks.growth import leaks_at
from vramlens.analyses.leaks.recorded_leak import RecordedLeak

CACHES = (MAIN, at(LEAK_LINE), ("/site-packages/transformers/cache_utils.py", 80, "update"))
TOKENS = 4


def leaks_of(run: Run, *, failed: bool) -> list[RecordedLeak]:
    if failed:
        run.tell("oom", 0, 64 * MIB, (MAIN, at(3)), device_free=0)
    trace = run.trace()
    view = attribute(trace, trace.devices[0])
    event = view.device.out_of_memory[-1].event if failed else None
    return [leak for leak in leaks_at(view, event) if leak.verdict != "not a problem"]


def chat_server(conversations: int, steps: int = 24, forgotten_after: int | None = None) -> Run:
    """A request a step, each of the next conversation; each token makes its cache anew, larger."""
    run = Run(0)
    run.setup()
    caches: dict[int, tuple[int, int]] = {}

    def answer(step: int) -> None:
        user = step % conversations
        address, size = caches.get(user, (0, 0))
        for token in range(TOKENS):
            larger = size + MIB if token else size + 4 * MIB
            new = run.new(larger, *CACHES)
            if size:
                run.free(address)
            address, size = new, larger
        caches[user] = address, size
        if forgotten_after is not None and step >= forgotten_after:
            run.free(caches.pop((step - forgotten_after) % conversations)[0])

    for step in range(steps):
        run.step(answer, step)
    return run


def test_caches_that_each_token_renews_are_a_leak_where_more_of_them_stay() -> None:
    (leak,) = leaks_of(chat_server(9), failed=True)
    assert (leak.verdict, leak.place and leak.place.line) == ("likely", LEAK_LINE)
    assert leak.bytes_per_step == 7 * MIB
    assert leak.bytes == 24 * 7 * MIB
    assert "drop the key-value caches" in (leak.fix or "")


def test_without_a_failure_they_may_be_a_store_that_fills() -> None:
    (leak,) = leaks_of(chat_server(9), failed=False)
    assert leak.verdict == "possible"


def test_one_text_that_grows_is_only_possible() -> None:
    (leak,) = leaks_of(chat_server(1), failed=True)
    assert leak.verdict == "possible"
    assert "until the text ends" in leak.reason


def test_conversations_that_are_put_away_leave_nothing() -> None:
    assert not leaks_of(chat_server(9, forgotten_after=5), failed=True)


def test_a_ring_that_is_full_does_not_grow() -> None:
    run = Run(0)
    run.setup()
    ring: list[int] = []

    def extra(step: int) -> None:
        ring.append(run.new(8 * MIB, *CACHES))
        if len(ring) > 20:
            run.free(ring.pop(0))

    for step in range(22):
        run.step(extra, step)
    assert not [leak for leak in leaks_of(run, failed=True) if "replaces" in leak.evidence[0]]
