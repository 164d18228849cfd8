"""The answer of an attach as text."""

from __future__ import annotations

from vramlens.attach.attachment import Attachment
from vramlens.attach.story import story


def test_sentences_are_broken_at_the_width_of_a_plain_answer() -> None:
    pause = {"longest_s": 0.08, "total_s": 0.43, "longest_step_s": 0.3, "median_step_s": 0.1}
    notes = ["its heap was searched beside it, because the system makes no copy of this process"]
    answer = {"request": "watch", "steps": 30, "pause": pause}
    text = story(Attachment(answer, "a thread of its own", 0.0026, notes=notes))
    assert "paused for 0.43 s in total (longest pause: 0.08 s)" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
