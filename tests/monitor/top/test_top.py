"""``vramlens top``: its lines, its data, its screen and its errors, on machines that are none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fake_nvml import GIB, MIB, SHAPES, FakeNvml, plug_in, several, uuid_of
from vramlens.capture.memory import driver
from vramlens.cli.main import main
from vramlens.monitor.machine import machine as machine_module
from vramlens.monitor.machine.inside import (
    Inside,
    InsideDevice,
    inside_path,
    start_of,
    write_inside,
)
from vramlens.monitor.machine.machine import DeviceNow, Machine, MachineNow
from vramlens.monitor.top.history import History, chart
from vramlens.monitor.top.lines import machine_lines
from vramlens.monitor.top.screen_lines import SORTS, View, screen_lines
from vramlens.monitor.top.watching import JsonLines, MachineWatch, machine_dict

FAKE_TOP = Path(__file__).parents[1] / "fake_top.py"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeNvml]:
    """Eight GPUs; this process, which runs under vramlens and leaks, is on the first."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(machine_module, "own_pids", lambda: ((os.getpid(),), True))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml = plug_in(several())
    nvml.gpus[0].compute = [(os.getpid(), 20 * GIB)]
    folder = tmp_path / f"vramlens-{os.getuid()}"
    folder.mkdir(mode=0o700)
    tell(folder)
    yield nvml
    driver.forget()


def tell(folder: Path, *, step_us: int | None = None, **others: Any) -> None:
    device = InsideDevice(
        0,
        uuid_of(0),
        15 * GIB,
        18 * GIB,
        17 * GIB,
        GIB // 2,
        15 * GIB,
        **{"growth_bytes": 5 * MIB, "steps_left": 812, **others},
    )
    started = start_of(os.getpid()) or 0
    inside = Inside(
        os.getpid(), started, time.time_ns() // 1000, 1204, 3, GIB, 2 * GIB, "train.py", (device,)
    )
    inside = replace(inside, step_us=step_us)
    write_inside(inside_path(inside.pid, started, str(folder)), inside)


def test_it_leaves_no_signal_handler_behind(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["top", "--once"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Process {os.getpid()} will run out of memory on GPU 0 in about 812 steps."
    assert lines[2].split() == [
        "GPU",
        "used",
        "free",
        "live",
        "cached",
        "nccl",
        "other",
        "of",
        "GiB",
        "busy",
        "temp",
        "power",
    ]
    assert lines[3].split()[:8] == ["0", "20.62", "59.02", "15.00", "3.00", "0.50", "2.12", "79.65"]
    row = next(line for line in lines if line.split()[:1] == [str(os.getpid())])
    assert "15.00" in row
    assert "1,204" in row
    assert "+5.00 MiB" in row
    assert lines[-1] == f"  vramlens dump {os.getpid()} -o now.vram && vramlens leaks now.vram"
    assert max(map(len, lines)) <= 100


def test_the_healthy_machine_says_which_gpu_is_fullest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tell(tmp_path / f"vramlens-{os.getuid()}", growth_bytes=None, steps_left=None)
    main(["top", "--once"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Fullest of 8 GPUs is 5: 50.62 GiB of 79.65 GiB used (64%), 29.02 GiB free."
    assert lines[-1] == f"Next, one program in detail: vramlens top {os.getpid()}"


def test_a_pipe_gets_one_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 0
    assert capsys.readouterr().out.count("Host:") == 1


def test_a_line_that_was_written_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    assert main(["top", "--jsonl", str(path), "--once"]) == 0
    assert capsys.readouterr().err == f"vramlens: one line added to {path}\n"
    assert len(path.read_text().splitlines()) == 1


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "vramlens/1"
    first = found["devices"][0]
    assert sum(first["kinds"].values()) == first["total_bytes"]
    inside = first["processes"][0]["inside"]
    assert (inside["allocated_bytes"], inside["step"], inside["pinned_bytes"]) == (
        15 * GIB,
        1204,
        2 * GIB,
    )


def test_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(os.getpid()), "--once"]) == 0
    out = capsys.readouterr().out
    assert "15.00 GiB  in use by PyTorch" in out
    assert "999002" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["4194303"], 3, "there is no process 4194303"),
        (["1"], 3, "is not on any GPU"),
        (["--interval", "0"], 2, "is not a number of seconds"),
        (["--interval", "x"], 2, "is not a number of seconds"),
        (["--alert", "used"], 2, "not an alert"),
        (["--exec", "true"], 2, "need an alert"),
        (
            ["--alert", "used > 1%", "--exec", "/nothing/here"],
            2,
            "does not exist or cannot be executed",
        ),
        (["--jsonl", "/nowhere/at/all"], 3, "/nowhere/at/all: No such file"),
        (["--once", "--plain"], 2, "not allowed"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert main(["top", *arguments]) == code
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_shape_has_its_lines(shape: str, width: int) -> None:
    plug_in(SHAPES[shape]())
    lines = machine_lines(Machine(["/nowhere"]).look(), History(), width)
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_a_command_cannot_steer_the_terminal(machine: FakeNvml) -> None:
    now = Machine().look()
    device = now.devices[0]
    process = replace(device.processes[0], command="train\x1b[2J.py\nx 列車 é", user="\x07")
    now = replace(now, devices=(replace(device, processes=(process,)),))
    lines = machine_lines(now, width=200)
    assert all(line.isprintable() for line in lines)
    assert any("\\u5217\\u8eca é" in line for line in lines)


def test_nor_can_the_command_of_the_chosen_process(machine: FakeNvml) -> None:
    machine.gpus[0].compute = [(999_007, 20 * GIB)]
    watching = MachineWatch()
    now = watching.look()
    (one, *rest) = now.devices
    evil = replace(one.processes[0], command="train\x1b]52;c;aGk=\x07\r\n\u202e")
    now = replace(now, devices=(replace(one, processes=(evil,)), *rest))
    view = View(chosen=(999_007, "0"), detail=True)
    lines = screen_lines(now, watching.history, view, 120, 40)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert any(r"Process 999007: train\x1b]52" in text for text in texts)
    assert all(text.isprintable() for text in texts)


def test_a_clock_that_is_put_back_begins_the_history_anew(machine: FakeNvml) -> None:
    watching = MachineWatch()
    now = watching.look()
    hour_us = 3_600_000_000
    for at in (*range(10), *(-hour_us // 1_000_000 + at for at in range(10))):
        watching.history.add(replace(now, time_us=now.time_us + hour_us + at * 1_000_000))
    points = watching.history.points("used", "0")
    assert [at for at, _ in points] == sorted(at for at, _ in points)
    assert len(points) == 10


def test_jsonl_and_alerts_run_silently_until_they_are_told_to_end(tmp_path: Path) -> None:
    out, told = tmp_path / "out.jsonl", tmp_path / "told"
    notify = tmp_path / "notify.sh"
    notify.write_text(f'#!/bin/sh\necho "$1" >> {told}\n')
    notify.chmod(0o700)
    command = [sys.executable, str(FAKE_TOP), "several", "--jsonl", str(out), "--interval", "0.1"]
    command += ["--alert", "used > 60%", "--exec", str(notify)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 20
        while not (out.exists() and len(out.read_text().splitlines()) >= 3 and told.exists()):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        printed, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert printed == ""
    assert said.startswith("vramlens: alert: GPU 5: used ")
    assert told.read_text().startswith("GPU 5: used ")
    looks = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(len(look["devices"]) == 8 for look in looks)
    assert looks[0]["time_us"] < looks[-1]["time_us"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} {FAKE_TOP} several --plain --interval 0.1 | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_process_that_ends_while_it_is_watched(
    machine: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sleep", "60"])
    machine.gpus[1].compute = [(child.pid, GIB)]
    watching = MachineWatch(pid=child.pid)
    assert len(watching.look().devices) == 1
    assert not watching.ended
    child.kill()
    child.wait()
    machine.gpus[1].compute = []
    monkeypatch.setattr(machine_module, "_LISTED_EVERY_S", 0.0)
    watching.look()
    assert watching.ended


def test_between_two_listings_of_processes_memory_is_new_and_processes_are_kept(
    machine: FakeNvml,
) -> None:
    watched = Machine()
    first = watched.look()
    calls = machine.calls
    machine.gpus[0].free -= GIB
    second = watched.look()
    assert second.devices[0].used_bytes == first.devices[0].used_bytes + GIB
    assert second.devices[0].processes is first.devices[0].processes
    assert machine.calls - calls <= 8 + 1


def device(used: float, *, name: str = "0") -> DeviceNow:
    return DeviceNow(
        name,
        "H100",
        uuid_of(0),
        total_bytes=80 * GIB,
        free_bytes=int((80 - used) * GIB),
        processes=(),
    )


def at(seconds: float, *devices: DeviceNow) -> MachineNow:
    return MachineNow(int(seconds * 1e6), devices, machine_module.HostMemory())


def test_history_has_the_trend_and_is_bounded() -> None:
    history = History()
    for second in range(5000):
        history.add(at(second, device(10 + second / 1024)))
    assert len(history.points("used", "0")) <= 3601
    assert history.per_minute("used", "0") == pytest.approx(60 * MIB)
    history.add(at(9000))
    assert history.points("used", "0") == ()


def test_a_trend_needs_time() -> None:
    history = History()
    for tenth in range(20):
        history.add(at(tenth / 10, device(tenth)))
    assert history.per_minute("used", "0") is None


def test_a_chart_shows_each_value_at_its_time() -> None:
    points = [(float(second), float(second)) for second in range(8)]
    assert chart(points, 8, 1, 8.0, 7.0) == ["▁▁▂▃▅▆▇█"]
    assert chart(points, 4, 2, 4.0, 7.0) == ["▁▃▆█", "████"]
    assert chart([], 4, 1, 4.0, 1.0) == ["    "]
    assert chart([(0.0, 5.0), (3.0, 5.0)], 4, 1, 4.0, 5.0) == [
        "████"
    ]  # between two looks nothing is known to be else
    assert chart(points, 0, 2, 4.0, 7.0) == ["", ""]


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (60, 12), (200, 60), (40, 8)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_picture_fits_its_screen(shape: str, width: int, height: int) -> None:
    plug_in(SHAPES[shape]())
    watching = MachineWatch(machine=Machine())
    now = watching.look()
    for view in (
        View(),
        View(help=True),
        View(charts="full"),
        View(charts="compact"),
        View(chosen=(999_002, "1"), detail=True),
    ):
        lines = screen_lines(now, watching.history, view, width, height)
        assert len(lines) == height
        assert all(sum(len(text) for text, _ in line) <= width for line in lines)


def screen_test(steps: Any, *, size: tuple[int, int] = (120, 40)) -> None:
    """Runs the screen without a terminal and lets ``steps(screen, pilot)`` use it."""
    pytest.importorskip("textual")
    from vramlens.monitor.top.top_screen import Screen

    watching = MachineWatch()
    watching.look()
    screen = Screen(watching, 0.1)

    async def run() -> None:
        async with screen.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(screen, pilot)

    asyncio.run(run())


def text_of(screen: Any) -> str:
    return "\n".join("".join(part for part, _ in line) for line in screen._canvas._rows)


def test_the_screen_and_its_keys() -> None:
    async def steps(screen: Any, pilot: Any) -> None:
        assert f"Process {os.getpid()} will run out of memory on GPU 0" in text_of(screen)
        assert text_of(screen).splitlines()[-1].startswith("q quit")
        await pilot.press("end", "home", "down", "up", "pagedown", "pageup")
        assert screen.view.chosen is not None
        await pilot.press(",")
        assert SORTS[screen.view.sort] == "command"
        await pilot.press(".", "/")
        assert (screen.view.sort, screen.view.turned) == (0, True)
        await pilot.press("]", "]", "]", "c")
        assert (screen.view.span, screen.view.charts) == (2, "compact")
        await pilot.press("?")
        assert "send SIGINT, SIGTERM or SIGKILL" in text_of(screen)
        await pilot.press("escape", "escape")
        assert screen.view.chosen is None
        await pilot.press("f", "r", "right")
        assert "GPU 5 memory, 1 h" in text_of(screen)
        await pilot.press("q")

    screen_test(steps)


def test_detail_of_the_chosen_process() -> None:
    async def steps(screen: Any, pilot: Any) -> None:
        screen.view.chosen = (os.getpid(), "0")
        await pilot.press("enter")
        assert (
            "live 15.00 GiB, reserved 18.00 GiB, peak 17.00 GiB, NCCL 512.00 MiB, pinned on the host 2.00 GiB"
            in text_of(screen)
        )
        assert "+5.00 MiB per step, memory for about 812 more" in text_of(screen)

    screen_test(steps)


def test_a_signal_is_sent_only_after_a_question(machine: FakeNvml) -> None:
    child = subprocess.Popen(["sleep", "60"])
    machine.gpus[1].compute = [(child.pid, GIB)]

    async def steps(screen: Any, pilot: Any) -> None:
        screen.view.chosen = (child.pid, "1")
        await pilot.press("T")
        assert text_of(screen).splitlines()[-1].startswith(f"Send SIGTERM to process {child.pid}?")
        await pilot.press("n")
        assert child.poll() is None
        await pilot.press("T", "y")
        assert child.wait(10) == -signal.SIGTERM
        assert "Sent SIGTERM" in text_of(screen)

    screen_test(steps)


def test_no_signal_goes_to_a_number_that_is_not_known_here() -> None:
    async def steps(screen: Any, pilot: Any) -> None:
        screen.view.chosen = (999_002, "1")  # the driver's number, which means nothing here
        await pilot.press("K", "y")
        assert "nothing was sent" in text_of(screen)

    screen_test(steps)


def test_the_screen_is_drawn_anew_in_another_size_and_while_figures_change(
    machine: FakeNvml,
) -> None:
    async def steps(screen: Any, pilot: Any) -> None:
        from textual.geometry import Region

        for width, height in ((150, 50), (80, 24), (120, 40)):  # whatever the lines were made for
            strips = screen._canvas.render_lines(Region(0, 0, width, height))
            assert [strip.cell_length for strip in strips] == [width] * height
        assert [strip.text for strip in screen._canvas.render_lines(Region(5, 0, 9, 1))] == [
            text_of(screen)[5:14]
        ]
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.3)
        assert len(screen._canvas._rows) == 24
        machine.gpus[7].free -= 33 * GIB
        await pilot.pause(0.5)
        assert "33.62 of 79.65 GiB" in text_of(screen)

    screen_test(steps)


def test_json_lines_are_small_and_survive_rotation(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    lines = JsonLines(str(path))
    now = Machine().look()
    lines.take(now)
    path.rename(tmp_path / "gpu.jsonl.1")  # as logrotate does
    lines.take(now)
    lines.take(now)
    path.unlink()
    lines.take(now)
    lines.close()
    assert len((tmp_path / "gpu.jsonl.1").read_text().splitlines()) == 1
    (line,) = path.read_text().splitlines()
    assert "null" not in line
    assert len(line) < len(json.dumps(machine_dict(now), separators=(",", ":")))
    content = json.loads(line)
    assert content["hostname"]
    inside = content["devices"][0]["processes"][0]["inside"]
    assert (inside["rank"], inside["growth_bytes"]) == (3, 5 * MIB)


def test_json_lines_go_on_after_a_file_could_not_be_opened(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = JsonLines(str(folder / "gpu.jsonl"))
    now = Machine().look()
    folder.rename(tmp_path / "rotated")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            lines.take(now)
    folder.mkdir()
    lines.take(now)
    lines.close()
    assert len((folder / "gpu.jsonl").read_text().splitlines()) == 1


def test_the_headline_has_the_clock_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tell(tmp_path / f"vramlens-{os.getuid()}", step_us=1_000_000)
    main(["top", "--once"])
    assert re.search(r"in about 812 steps, at\s+about \S", capsys.readouterr().out)
