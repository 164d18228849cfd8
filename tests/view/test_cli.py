"""``vramlens view``: a file, or a page that ends with its terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser

import pytest

from support.page_data import PageData, data_in
from support.recordings import DATA
from vramlens.cli.main import main

GPT = str(DATA / "recordings" / "gpt.pickle.xz")
OTHER = str(DATA / "recordings" / "resnet50.pickle.xz")


def test_one_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["view", GPT, "-o", "run.html"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("vramlens: run.html: ")
    assert "all of its 2,490 allocations" in said.err
    page = PageData(data_in((tmp_path / "run.html").read_text()))
    assert page.header["title"] == "gpt.pickle.xz"
    assert page.header["tracks"][0]["rows"]["n"] == 2490


def test_standard_output(capsys):
    assert main(["view", GPT, "-o", "-", "--no-sources"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_two_are_one_page(tmp_path):
    assert main(["view", GPT, OTHER, "-o", str(tmp_path / "both.html")]) == 0
    page = PageData(data_in((tmp_path / "both.html").read_text()))
    assert [track["name"] for track in page.header["tracks"]] == [
        "gpt.pickle.xz",
        "resnet50.pickle.xz",
    ]


@pytest.mark.parametrize("place", [0, 1])
def test_an_input_is_not_overwritten(tmp_path, capsys, place):
    files = [tmp_path / "a.xz", tmp_path / "b.xz"]
    for file in files:
        file.write_bytes((DATA / "recordings" / "graphs.pickle.xz").read_bytes())
    before = files[place].read_bytes()
    assert main(["view", *map(str, files), "-o", str(files[place])]) == 2
    assert "choose another file" in capsys.readouterr().err
    assert files[place].read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["view"], 2, "required"),
        (["view", "-", "-", "-o", "x.html"], 2, "one FILE only"),
        (["view", "nothing.vram", "-o", "x.html"], 3, "nothing.vram"),
        (["view", GPT, "--device", "7", "-o", "x.html"], 2, "no device 7"),
        (["view", GPT, "--port", "70000"], 2, "not a port"),
        (["view", GPT, "--conf", "nonsense:1", "-o", "x.html"], 2, "nonsense"),
        (["view", GPT, "-o", "missing/x.html"], 3, "nothing was written"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path, monkeypatch, capsys, arguments, code, words
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_the_page_ends_with_its_terminal():
    """Reads the address from a terminal, fetches the page, closes the terminal: the program is
    gone.
    """
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "vramlens", "view", GPT, "--no-browser"],
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    try:
        address = b""
        while b"\n" not in address:
            address += os.read(ours, 1000)
        url = address.decode().strip()
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=300) as answer:
            assert b"gpt.pickle.xz" in answer.read()
        os.close(ours)
        assert program.wait(300) == -signal.SIGHUP
    finally:
        program.kill()
        program.wait()


def test_ctrl_c_ends_it():
    program = subprocess.Popen(
        [sys.executable, "-m", "vramlens", "view", GPT, "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A shell starts what runs in its background with SIGINT ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert program.stdout is not None
    assert program.stdout.readline().startswith(b"http://127.0.0.1:")
    time.sleep(0.1)
    program.send_signal(signal.SIGINT)
    program.stdout.close()
    assert program.wait(300) == 0


@pytest.mark.parametrize(
    ("variables", "opens"), [({}, False), ({"DISPLAY": ":0"}, True), ({"BROWSER": "code"}, True)]
)
def test_a_browser_is_opened_only_where_it_has_a_window(monkeypatch, capsys, variables, opens):
    """Elsewhere Python would start a browser that takes over the terminal."""
    asked, was_asked = [], threading.Event()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(webbrowser, "open", lambda url: (asked.append(url), was_asked.set()))
    wait_s = 10 if opens else 0.05
    monkeypatch.setattr(
        "vramlens.view.local.server.LocalPage.serve_forever",
        lambda *_, **__: was_asked.wait(wait_s),
    )
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["view", GPT]) == 0
    page, _, token = capsys.readouterr().out.strip().partition("?token=")
    assert len(token) > 20
    # Everyone on the machine can read the arguments of the command that starts it.
    assert [url.startswith(f"{page}open?code=") and token not in url for url in asked] == [
        True
    ] * opens


def test_a_jobs_folder_brings_its_flight_records(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["view", str(DATA / "ranks" / "ddp"), "--no-sources", "-o", str(page)]) == 0
    tracks = PageData(data_in(page.read_text(encoding="utf-8"))).header["tracks"]
    told = [
        (track["rank"], track["collectives"]["n"], track["collectives"]["flight"])
        for track in tracks
    ]
    assert told == [(0, 21, True), (1, 21, True)]
    capsys.readouterr()
    assert main(["view", str(DATA / "ranks" / "desync"), "-o", str(page)]) == 2
    assert "vramlens explain" in capsys.readouterr().err
