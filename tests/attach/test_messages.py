"""The words between ``vramlens attach`` and the process."""

from __future__ import annotations

import socket
import threading
import time

from vramlens.attach.messages import Connection


def test_whoever_has_the_answer_waits_until_the_other_end_has_left() -> None:
    here, there = socket.socketpair()
    has_cleaned_up = threading.Event()

    def answer_and_leave() -> None:
        Connection(there).send({"kind": "answer"})
        time.sleep(0.2)
        has_cleaned_up.set()
        there.close()

    with here:
        connection = Connection(here)
        thread = threading.Thread(target=answer_and_leave)
        thread.start()
        assert connection.receive(30.0) == {"kind": "answer"}
        connection.wait_for_end(30.0)
        assert has_cleaned_up.is_set()
        thread.join()


def test_one_that_does_not_leave_is_not_waited_for_any_longer() -> None:
    here, there = socket.socketpair()
    with here, there:
        began = time.monotonic()
        Connection(here).wait_for_end(0.05)
        assert time.monotonic() - began >= 0.05
