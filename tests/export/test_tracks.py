"""Spans on tracks: nothing is lost, nothing overlaps that must not, and no track too many."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vramlens.export.tracks import MOST_TRACKS, Span, nested, side_by_side

SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(
        lambda pair: Span(min(pair), max(pair), "x")
    ),
    max_size=30,
)


def crossing(a: Span, b: Span) -> bool:
    """Whether two spans overlap and neither is inside the other."""
    return (
        a.begin_ns < b.begin_ns < a.end_ns < b.end_ns
        or b.begin_ns < a.begin_ns < b.end_ns < a.end_ns
    )


@settings(deadline=None)
@given(SPANS)
def test_nested_spans_never_cross(spans: list[Span]) -> None:
    tracks, left_out = nested("n", spans)
    drawn = [span for track in tracks for span in track.spans]
    assert left_out == 0
    key = lambda span: (span.begin_ns, span.end_ns)  # noqa: E731
    assert sorted(map(key, drawn)) == sorted(map(key, spans))
    for track in tracks:
        assert [span.begin_ns for span in track.spans] == sorted(
            span.begin_ns for span in track.spans
        )
        assert not any(crossing(a, b) for a in track.spans for b in track.spans)


def test_spans_that_nest_share_a_track() -> None:
    spans = [
        Span(0, 100, "outer"),
        Span(10, 50, "inner"),
        Span(20, 30, "innermost"),
        Span(50, 60, "next"),
    ]
    (track,), _ = nested("n", spans)
    assert [span.name for span in track.spans] == ["outer", "inner", "innermost", "next"]


def test_what_finds_no_room_is_counted() -> None:
    tracks, left_out = nested("n", [Span(i, 1000 + i, "x") for i in range(MOST_TRACKS + 7)])
    assert (len(tracks), left_out) == (MOST_TRACKS, 7)


@settings(deadline=None)
@given(SPANS)
def test_side_by_side_spans_never_overlap_and_tracks_are_as_few_as_can_be(
    spans: list[Span],
) -> None:
    tracks = side_by_side("n", spans)
    for track in tracks:
        ends = [0, *(span.end_ns for span in track.spans)]
        assert all(begin.begin_ns >= end for begin, end in zip(track.spans, ends, strict=False))
    assert sum(len(track.spans) for track in tracks) == len(spans)
    long = [span for span in spans if span.end_ns > span.begin_ns]
    deepest = max((sum(a.begin_ns <= b.begin_ns < a.end_ns for a in long) for b in long), default=0)
    assert deepest <= len(tracks)
    if long == spans:
        assert len(tracks) == deepest
