"""Alerts: what a rule means, when it fires, and that what it sets off can hold up nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramlens.capture import warn
from vramlens.errors import UsageError
from vramlens.monitor.alerts.actions import Actions
from vramlens.monitor.alerts.alerts import Alert, Values, Watch
from vramlens.monitor.alerts.rules import parse_rule
from vramlens.monitor.place_in_job import PlaceInJob
from vramlens.monitor.step_growth import GrowthRate, StepGrowth, steps_left
from vramlens.monitor.step_pace import StepPace, clock_words, seconds_left

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("text", "metric", "is_above", "limit", "is_share", "for_s"),
    [
        ("used > 92%", "used", True, 92, True, 0),
        ("used>92%", "used", True, 92, True, 0),
        ("USED > 92.5%", "used", True, 92.5, True, 0),
        ("free < 2GiB for 30s", "free", False, 2 * GIB, False, 30),
        ("free < 2 GiB for 1.5 min", "free", False, 2 * GIB, False, 90),
        ("growth > 5MiB/step", "growth", True, 5 * MIB, False, 0),
        ("growth > 5 MiB / step", "growth", True, 5 * MIB, False, 0),
        ("growth >= 0/step", "growth", True, 0, False, 0),
        ("live > 20GB", "allocated", True, 20 * 10**9, False, 0),
        ("steps_left < 500", "steps_left", False, 500, False, 0),
        ("left < 500 steps", "steps_left", False, 500, False, 0),
        ("temperature > 85C", "temperature", True, 85, False, 0),
        ("temp > 85 °C", "temperature", True, 85, False, 0),
        ("power > 650W", "power", True, 650, False, 0),
        ("steps_left < 500 for 1min", "steps_left", False, 500, False, 60),
        ("gpu < 10% for 1h", "gpu", False, 10, False, 3600),
        ("retries > 0", "retries", True, 0, False, 0),
        ("ooms > 0", "failures", True, 0, False, 0),
        ("host > 90%", "host", True, 90, True, 0),
    ],
)
def test_what_a_rule_means(
    text: str, metric: str, is_above: bool, limit: float, is_share: bool, for_s: float
) -> None:
    rule = parse_rule(text)
    assert (rule.metric, rule.is_above, rule.limit, rule.is_share, rule.for_s) == (
        metric,
        is_above,
        limit,
        is_share,
        for_s,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not an alert"), ("used", "not an alert"), ("used = 5", "not an alert"), ("used > ", "not an alert"),
        ("speed > 5", "'speed' is not available; use one of used, free"), ("used > 5 apples", "not a size"),
        ("growth > 5MiB", "growth > 5MiB/step"), ("growth > 5%", "per step"), ("rss > 5%", "a size, not a share"),
        ("used > 1.2.3%", "not a number"), ("temperature > 85 GiB", "not measured in 'GiB' but in C"),
        ("used > 92% for 5 apples", "no"), ("used > 92", "no unit: write 'used > 92%' or 'used > 20GiB'"),
        ("rss > 8 for 1min", "no unit: write 'rss > 20GiB'"), ("free < 2", "no unit"),
    ],
)  # fmt: skip
def test_what_is_no_rule_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as failed:
        parse_rule(text)
    assert "\n" not in str(failed.value)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_a_usage_error(text: str) -> None:
    try:
        parse_rule(text)
    except UsageError as error:
        assert str(error)  # noqa: PT017


def used(percent: float) -> list[Values]:
    return [Values("GPU 0", {"used": percent * GIB}, 100 * GIB)]


def test_it_fires_once_and_again_only_after_it_was_clearly_back() -> None:
    watch = Watch([parse_rule("used > 92%")])
    series = [(0, 50), (1, 93), (2, 99), (100, 93), (200, 91), (300, 93), (400, 90), (500, 93)]
    fired = [at for at, percent in series if watch.look(used(percent), at)]
    assert fired == [1, 500]  # 91% is within the margin: it was not over


def test_a_swinging_value_is_quiet_for_a_minute() -> None:
    watch = Watch([parse_rule("used > 50%")])
    fired = [at for at in range(180) if watch.look(used(80 if at % 2 else 10), at)]
    assert fired == [1, 61, 121]


def test_what_is_over_again_within_the_minute_and_stays_so_is_told_after_it() -> None:
    watch = Watch([parse_rule("used > 50%")])
    fired = [at for at in range(180) if watch.look(used(10 if 10 <= at < 20 else 80), at)]
    assert fired == [0, 60]


def test_it_must_hold_for_as_long_as_the_rule_says() -> None:
    watch = Watch([parse_rule("used > 50% for 10s")])
    series = [(0, 60), (5, 60), (6, 10), (7, 60), (16, 60), (17, 60), (18, 60)]
    assert [at for at, percent in series if watch.look(used(percent), at)] == [17]


def test_things_are_watched_apart_and_what_is_not_known_is_not_judged() -> None:
    watch = Watch([parse_rule("used > 50%"), parse_rule("free < 1GiB")])
    one = Values("GPU 0", {"used": 60 * GIB, "free": None}, 100 * GIB)
    two = Values("GPU 1", {"used": 60 * GIB, "free": GIB // 2}, None)
    assert [(alert.subject, alert.rule) for alert in watch.look([one, two], 0)] == [
        ("GPU 0", "used > 50%"),
        ("GPU 1", "free < 1GiB"),
    ]


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), max_size=200), st.floats(1, 99))
def test_between_two_alerts_it_was_back(series: list[float], limit: float) -> None:
    """Whatever the series: never two alerts without the value having been 2 points below the
    limit in between.
    """
    watch = Watch([parse_rule(f"used > {limit:.4f}%")])
    limit = watch.rules[0].limit
    was_back = True
    for at, percent in enumerate(series):
        share = 100 * (percent * GIB) / (100 * GIB)
        fired = bool(watch.look(used(percent), at * 100.0))
        if fired:
            assert was_back
            assert share > limit
            was_back = False
        was_back = was_back or share <= limit - 2


def test_the_sentence_has_the_figures_and_when_it_runs_out() -> None:
    watch = Watch([parse_rule("used > 92%"), parse_rule("growth > 5MiB/step")])
    both = Values("GPU 0", {"used": 75 * GIB, "growth": 6 * MIB, "steps_left": 812}, 80 * GIB)
    share, growth = watch.look([both])
    left = "; it will run out in about 812 steps"
    assert share.text == f"GPU 0: used 93.8% is over 92.0% (75.00 GiB of 80.00 GiB){left}"
    assert growth.text == f"GPU 0: growth 6.00 MiB per step is over 5.00 MiB per step{left}"
    assert growth.steps_left == 812
    assert json.dumps(growth.to_dict(), allow_nan=False)


def fed(sizes: list[int], *, first: int = 1) -> StepGrowth:
    growth = StepGrowth()
    for step, size in enumerate(sizes, first):
        growth.add(step, size)
    return growth


def noisy(rate: int, count: int, noise: int, seed: int = 0) -> list[int]:
    dice = random.Random(seed)
    return [10 * GIB + rate * step + dice.randint(0, noise) for step in range(count)]


@pytest.mark.parametrize("count", [12, 40, 129, 1000, 10_000])
@pytest.mark.parametrize("rate", [MIB, 5 * MIB])
def test_a_steady_leak_has_its_rate(count: int, rate: int) -> None:
    found = fed(noisy(rate, count, rate // 2)).rate()
    assert found is not None
    assert abs(found.bytes_per_step - rate) < rate / 10
    assert found.last_step <= count


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [GIB] * 11,
        [GIB] * 500,
        [GIB + 100 * MIB * (step % 10) for step in range(500)],  # a saw-tooth
        [GIB] * 3 + [5 * GIB] * 300,  # the optimizer's state
        [min(4 * GIB, GIB + step * 100 * MIB) for step in range(200)],  # a cache that fills
        [GIB - step * MIB for step in range(100)],
        noisy(0, 500, 200 * MIB),
    ],
    ids=["nothing", "too few", "flat", "saw-tooth", "once", "fills", "shrinks", "noise"],
)
def test_what_does_not_grow_steadily_has_no_rate(sizes: list[int]) -> None:
    assert fed(sizes).rate() is None


def test_noise_alone_has_no_rate_however_often_it_is_judged() -> None:
    false = 0
    for seed in range(60):
        growth = StepGrowth()
        rates = []
        for step, size in enumerate(noisy(0, 150, 200 * MIB, seed), 1):
            growth.add(step, size)
            if step % 5 == 0:
                rates.append(growth.rate())
        false += any(rates)
    assert false == 0


def test_a_leak_that_begins_late_is_found_once_it_fills_the_newer_half() -> None:
    growth = fed([GIB] * 100 + [GIB + step * MIB for step in range(200)])
    found = growth.rate()
    assert found is not None
    assert abs(found.bytes_per_step - MIB) < MIB / 10


def test_memory_for_the_steps_is_bounded_and_a_new_count_begins_anew() -> None:
    growth = fed([GIB] * 100_000)
    assert len(growth._points) <= 128
    growth.add(1, GIB)
    assert growth._points == [(1, GIB)]
    assert growth.rate() is None


def test_how_many_steps_are_left() -> None:
    assert steps_left(GrowthRate(5 * MIB, 1, 9), GIB) == 204
    assert steps_left(None, GIB) is None
    assert steps_left(GrowthRate(5 * MIB, 1, 9), None) is None
    assert steps_left(GrowthRate(5 * MIB, 1, 9), -5) == 0


ALERT = Alert("used > 92%", "GPU 0", "used", 95.0, 92.0, "GPU 0: used 95.0% is over 92.0%", None, 1)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn, "_said", set())


def script(folder: Path, text: str) -> str:
    path = folder / "notify.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_gets_the_sentence_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = script(
        tmp_path, f'echo "$1|$2|$VRAMLENS_ALERT|$VRAMLENS_RULE|$VRAMLENS_VALUE" > {out}'
    )
    actions = Actions(command=f"{command} '$(touch {tmp_path}/injected)'", say_line=None)
    actions.do(ALERT)
    actions.finish()
    first = f"$(touch {tmp_path}/injected)"
    assert out.read_text() == f"{first}|{ALERT.text}|{ALERT.text}|used > 92%|95\n"
    assert not (tmp_path / "injected").exists()


def test_nobody_waits_for_a_command(tmp_path: Path) -> None:
    command = script(
        tmp_path, f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; touch {tmp_path}/ended"
    )
    actions = Actions(command=command, say_line=None, within_s=60)
    actions.do(ALERT)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "go").touch()
    actions.finish()
    assert (tmp_path / "ended").exists()


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = script(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; sleep 60")
    actions = Actions(command=command, say_line=None, within_s=0.5)
    actions.do(ALERT)
    actions.do(ALERT)
    actions.finish()
    assert capsys.readouterr().err.count("was ended after 0.5 s") == 1
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 300
    while is_running(child):
        assert time.monotonic() < until
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_command_that_fails_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = Actions(command=script(tmp_path, "exit 7"), say_line=None)
    actions.do(ALERT)
    actions.do(ALERT)
    actions.finish()
    assert capsys.readouterr().err.count("failed (exit code 7)") == 1


def test_a_command_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist or cannot be executed"):
        Actions(command=str(tmp_path / "nothing.sh"))
    with pytest.raises(UsageError, match="cannot be read"):
        Actions(command="a 'b")
    with pytest.raises(UsageError, match="not an http or https address"):
        Actions(webhook="file:///etc/passwd")


class Hook(BaseHTTPRequestHandler):
    got: list[Any] = []  # noqa: RUF012
    status = 200

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    Hook.got, Hook.status = [], 200
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_webhook_gets_the_alert(hook: str) -> None:
    actions = Actions(webhook=hook, say_line=None)
    actions.do(ALERT)
    actions.finish()
    assert Hook.got == [ALERT.to_dict()]


def test_a_webhook_that_refuses_or_is_not_there_is_said_once_without_its_path(
    hook: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Hook.status = 500
    for url in (hook, "http://127.0.0.1:9/secret"):
        actions = Actions(webhook=url, say_line=None)
        actions.do(ALERT)
        actions.do(ALERT)
        actions.finish()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert not any("secret" in line for line in said)


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "http:///x",
        "http://h:99999/",
        "http://[::1",
        "http://h/a b",
        "http://h/\n",
        "http://h/\u202e",
    ],
)
def test_an_address_that_is_none_is_said_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="not an http or https address"):
        Actions(webhook=url)


def test_a_webhook_that_fails_tells_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    actions = Actions(webhook="http://ada:secret@127.0.0.1:9/hook", say_line=None)
    actions.do(ALERT)
    actions.finish()
    said = capsys.readouterr().err
    assert "webhook at 127.0.0.1:9 failed" in said
    assert "secret" not in said


def test_a_webhook_that_answers_without_end_is_not_listened_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def dribble() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not over.wait(0.05):
                    with contextlib.suppress(OSError):
                        connection.sendall(b"x")

        thread = threading.Thread(target=dribble)
        thread.start()
        actions = Actions(webhook=f"http://127.0.0.1:{listener.getsockname()[1]}/", say_line=None)
        began = time.monotonic()
        actions.do(ALERT)
        actions.finish()
        took = time.monotonic() - began
        over.set()
        thread.join()
    assert took < 60  # it would never end


def test_a_callback_that_fails_is_said_once_and_the_line_comes_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(_alert: Alert) -> None:
        raise ValueError("mine")

    actions = Actions(callback=broken)
    actions.do(ALERT)
    actions.do(ALERT)
    said = capsys.readouterr().err
    assert said.count("alert: GPU 0: used 95.0%") == 2
    assert said.count("ValueError: mine") == 1


def test_after_a_fork_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    actions = Actions(command=script(tmp_path, f"touch {tmp_path}/ran"), say_line=None)
    monkeypatch.setattr(actions, "_pid", os.getpid() + 1)
    actions.do(ALERT)
    time.sleep(0.1)
    assert not (tmp_path / "ran").exists()


def test_an_alert_says_where_and_when_it_runs_out() -> None:
    place = PlaceInJob(host="node7", job="slurm:1234", rank=3)
    figures = {"growth": 6 * MIB, "steps_left": 600, "step_us": 2_000_000}
    values = Values("GPU 0", figures, 80 * GIB, place)
    (alert,) = Watch([parse_rule("growth > 5MiB/step")]).look([values])
    told = alert.to_dict()
    assert (told["host"], told["job"], told["rank"]) == ("node7", "slurm:1234", 3)
    assert alert.sentence == f"node7, job slurm:1234, rank 3: {alert.text}"
    assert re.search(r"in about 600 steps, at about (\w{3} \d+, )?\d\d:\d\d$", alert.text)
    assert alert.runs_out_us == alert.time_us + 1_200_000_000


def test_clock_words_have_a_day_only_where_it_is_another() -> None:
    noon = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
    assert clock_words(32 * 60, noon) == ", at about 12:32"
    assert clock_words(13 * 3600, noon) == ", at about Mar 5, 01:00"
    assert clock_words(None) == ""
    assert seconds_left(10, None) is None
    assert seconds_left(10**12, 10**9) is None  # farther than a year


def test_the_pace_of_steps_is_that_of_late() -> None:
    pace = StepPace()
    assert pace.step_us is None
    for step in range(200):
        pace.add(step, step * (10.0 if step < 100 else 0.5))
    assert pace.step_us == 500_000
    pace.add(0, 500.0)  # counted anew
    assert pace.step_us is None


def test_the_webhook_text_says_who_speaks(hook: str) -> None:
    alert = replace(ALERT, host="node7", job="slurm:9", rank=1)
    actions = Actions(webhook=hook, say_line=None)
    actions.do(alert)
    actions.finish()
    assert Hook.got[-1]["text"] == f"node7, job slurm:9, rank 1: {alert.text}"
