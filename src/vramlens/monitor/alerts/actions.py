"""Actions of an alert: a callback, a line on standard error, a command, a webhook. None can stop
or hold up anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from vramlens.capture.warn import harmless, say, say_once
from vramlens.errors import UsageError
from vramlens.ground.own_session import end_with_children
from vramlens.monitor.alerts.alerts import Alert

Callback = Callable[[Alert], object]
_COMMAND_WITHIN_S = 10.0
_WEBHOOK_WITHIN_S = 5.0
_MOST_WAITING = 100


class Actions:
    """Does what is to be done on an alert. Commands and webhooks go one after the other, on a
    thread of their own.
    """

    def __init__(
        self,
        *,
        callback: Callback | None = None,
        command: str | Sequence[str] | None = None,
        webhook: str | None = None,
        say_line: Callable[[str], None] | None = say,
        within_s: float = _COMMAND_WITHIN_S,
    ) -> None:
        """Prepares.

        Args:
            callback: called with the alert, on the thread that watches.
            command: started without a shell; the alert's sentence is its last argument.
                VRAMLENS_ALERT holds it too, VRAMLENS_RULE, VRAMLENS_SUBJECT, VRAMLENS_VALUE,
                VRAMLENS_HOST, VRAMLENS_JOB and VRAMLENS_RANK the rest. After ``within_s`` seconds it is ended.
            webhook: an http or https address, which gets the alert as JSON; ``text`` is the
                sentence.
            say_line: prints a line; None is silence.

        Raises:
            UsageError: there is no such command, or it is not such an address.
        """
        self._callback, self._say, self._within_s = callback, say_line, within_s
        self._command = _command(command)
        self._webhook = _webhook(webhook)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begins with nothing to do, in this process: a forked child has neither the thread nor
        its locks.
        """
        self._waiting: queue.Queue[Alert | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def do(self, alert: Alert) -> None:
        """Does it; returns at once."""
        if self._say is not None:
            self._say(f"alert: {alert.text}")
        if self._callback is not None:
            self._call(self._callback, alert)
        if self._command or self._webhook:
            self._hand_over(alert)

    def finish(self, within_s: float = 15.0) -> None:
        """Waits for what is still to be done."""
        if self._thread is not None and self._pid == os.getpid():
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(within_s)
            self._thread = None

    @harmless("calling the alert's callback")
    def _call(self, callback: Callback, alert: Alert) -> None:
        callback(alert)

    @harmless("handing on an alert")
    def _hand_over(self, alert: Alert) -> None:
        if self._pid != os.getpid():
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="vramlens-alerts", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            say_once(
                "alerts arrive faster than their command or webhook can handle; some are dropped"
            )

    def _run(self) -> None:
        while (alert := self._waiting.get()) is not None:
            if self._command:
                self._start(alert)
            if self._webhook:
                self._post(self._webhook, alert)

    @harmless("the alert's command")
    def _start(self, alert: Alert) -> None:
        name = self._command[0]
        variables = {
            "RULE": alert.rule,
            "SUBJECT": alert.subject,
            "VALUE": f"{alert.value:g}",
            "ALERT": alert.text,
            "HOST": alert.host or "",
            "JOB": alert.job or "",
            "RANK": "" if alert.rank is None else str(alert.rank),
        }
        environment = {**os.environ, **{f"VRAMLENS_{key}": text for key, text in variables.items()}}
        process = subprocess.Popen(
            [*self._command, alert.text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # so that all that it started ends with it
        )
        try:
            code = process.wait(self._within_s)
        except subprocess.TimeoutExpired:
            end_with_children(process)
            process.wait(1.0)
            say_once(
                f"the alert's command {name} was ended after {self._within_s:g} s",
                about=f"command {name} hangs",
            )
            return
        if code:
            say_once(
                f"the alert's command {name} failed (exit code {code})",
                about=f"command {name} fails",
            )

    @harmless("the alert's webhook")
    def _post(self, url: str, alert: Alert) -> None:
        import urllib.error
        import urllib.request  # brings TLS and half of http: only who wants it pays

        # Whoever reads it in a chat sees the text only.
        content = {**alert.to_dict(), "text": alert.sentence}
        body = json.dumps(content, allow_nan=False).encode()
        request = urllib.request.Request(
            url, body, {"Content-Type": "application/json"}, method="POST"
        )
        try:
            # What it answers is not read: it might come byte by byte, for hours.
            urllib.request.urlopen(request, timeout=_WEBHOOK_WITHIN_S).close()
        except Exception as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer, too
            host = urlsplit(url).netloc.rpartition("@")[2]  # user, password and path may be secrets
            say_once(f"the alert's webhook at {host} failed ({error})", about=f"webhook {host}")


def _webhook(url: str | None) -> str | None:
    if url is not None and not is_web_address(url):
        raise UsageError(f"the webhook {url!r} is not an http or https address")
    return url


def is_web_address(url: str) -> bool:
    """Whether something can be sent to an address by http or https."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_one and url.isascii() and url.isprintable() and " " not in url


def _command(command: str | Sequence[str] | None) -> list[str]:
    if not command:
        return []
    try:
        words = (
            shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        )
    except ValueError as error:
        raise UsageError(f"the alert's command {command!r} cannot be read: {error}") from None
    if not words:
        return []
    # A bare name may be a file here, as people write it: notify.sh.
    program = shutil.which(words[0]) or shutil.which(os.path.join(os.curdir, words[0]))
    if program is None:
        raise UsageError(
            f"the alert's command {words[0]!r} does not exist or cannot be executed (chmod +x?)"
        )
    return [os.path.abspath(program), *words[1:]]
