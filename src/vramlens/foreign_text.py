"""Foreign text: how names and messages that came with the input are written, wherever they go.

File, function, region and rank names, commands, error messages: whoever made the file chose them.
Shown as they are they would draw on the terminal, forge lines, close a code block, or give commands
to the machine that reads the log. Every place that shows text writes it with one of these, each in
its own form:

- ``visible``: a name, for a terminal, a log, or any other plain text;
- ``one_line``: the same for a whole sentence, which is never cut; ``text_of``: for lines;
- ``markdown``, ``markdown_code``, ``markdown_block``: for GitHub Markdown;
- ``html_text``: for HTML, also in attributes;
- ``workflow_command``: a GitHub annotation;
- ``without_controls``: what all text goes through at the very end, whatever wrote it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

LONGEST = 2000
"""Characters of a name that are shown."""
# The commands of a GitHub workflow, wherever a line may be broken before them (actions/runner,
# ActionCommand.cs), and those of Azure's and TeamCity's logs.
_LOG_COMMAND = re.compile(
    r"::(?=(?:add-mask|add-matcher|add-path|debug|echo|endgroup|error|group|notice|remove-matcher|save-state|set-env"
    r"|set-output|stop-commands|warning)(?:\s|::|$))"
    r"|##(?=\[|vso\[|teamcity\[)",
    re.IGNORECASE,
)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Colors and weights, the only sequences that a report itself writes (ECMA-48, SGR)."""
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and newline, which texts are made of
    r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"  # order, joints, breaks that nobody sees
)

_MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]<>#|~]|_+")
# What is to be typed becomes code: settings and arguments, calls, names in torch, options.
_VALUE = r"=(?:[^\s`,;:.()]|[,;:.](?=[^\s`()]))+"
_CODE = re.compile(
    r"(?<![\w.])(?:"
    r"(?:[A-Za-z_]\w*\.[\w.]*\w|[A-Za-z_]\w*_\w+)\([^()`]*\)|[A-Za-z_][\w.]*\(\)"
    rf"|[A-Za-z_][\w.]*{_VALUE}"
    r"|torch(?:\.\w+)+"
    rf"|(?<!-)--[a-z][\w-]*(?:{_VALUE})?"
    r")"
)
_SHELL = ("vramlens", "dmesg", "df", "ulimit")
# A mention or a reference in a comment would notify people and link issues that have nothing to do
# with it.
_ENTITIES = {"&": "&amp;", "@": "&#64;"}
_LONGEST_MESSAGE = 4000
_LONGEST_PROPERTY = 1000


def visible(text: str) -> str:
    """A name on one line, with whatever would not show, or would steer a terminal or a log, as an
    escape.

    What is longer than any name is cut, and ends in "…".
    """
    return one_line(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def one_line(text: str) -> str:
    """The whole text as ``visible`` shows it."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escape(char) for char in text)
    return _LOG_COMMAND.sub(_disarmed, text)


def text_of(lines: Iterable[str]) -> str:
    """Lines as one text: each of them stays one."""
    return "\n".join(map(one_line, lines))


def without_controls(text: str, *, keeps_style: bool = False) -> str:
    """Text of many lines in which nothing steers a terminal.

    Args:
        keeps_style: whether colors stay, for a terminal.
    """
    if not keeps_style:
        return _CONTROL.sub(lambda match: _escape(match[0]), text)
    styles = _STYLE.findall(text)
    parts = [without_controls(part) for part in _STYLE.split(text)]
    return "".join(part + style for part, style in zip(parts, [*styles, ""], strict=True))


def html_text(text: str) -> str:
    """The text on one line of HTML, as text and nothing else."""
    return html.escape(one_line(text))


def markdown(text: str) -> str:
    """Text that Markdown shows as it is; what stands between single backticks becomes code."""
    parts = one_line(text).split("`")
    if len(parts) % 2 == 0:  # a backtick without its pair is just a character
        return _with_code("`".join(parts))
    return "".join(
        markdown_code(part) if i % 2 else _with_code(part) for i, part in enumerate(parts)
    )


def markdown_code(text: str) -> str:
    """A code span that holds any text, also inside a table."""
    text = one_line(text)
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")


def markdown_block(lines: tuple[str, ...]) -> str:
    """Lines as a block of code, which none of them ends."""
    lines = tuple(one_line(line) for line in lines)
    fence = "`" * max(3, *(_longest_run(line) + 1 for line in lines))
    return "\n".join((f"{fence}sh" if lines[0].split(" ")[0] in _SHELL else fence, *lines, fence))


def workflow_command(kind: str, message: str, **properties: str | int | None) -> str:
    """One workflow command of GitHub: ``::error file=train.py,line=44::message``.

    Args:
        message: it may have several lines, each of which is shown as it is.
        properties: None is left out.
    """
    shown = [f"{name}={_property(text)}" for name, text in properties.items() if text is not None]
    head = " ".join(filter(None, (kind, ",".join(shown))))
    lines = "\n".join(one_line(line) for line in shortened(message, _LONGEST_MESSAGE).split("\n"))
    return f"::{head}::{_data(lines)}"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _disarmed(match: re.Match[str]) -> str:
    return f"{match[0][0]}\\x{ord(match[0][1]):02x}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


def _with_code(text: str) -> str:
    done, end = "", 0
    for match in _CODE.finditer(text):
        done += _escaped(text[end : match.start()]) + markdown_code(match[0])
        end = match.end()
    return done + _escaped(text[end:])


def _escaped(text: str) -> str:
    text = "".join(_ENTITIES.get(char, char) for char in text)
    return _MARKDOWN_SPECIAL.sub(_with_backslashes, text).replace(r"&\#64;", "&#64;")


def _with_backslashes(match: re.Match[str]) -> str:
    """A special character with its backslash; underscores inside a word mean nothing and are
    left alone.
    """
    text = match.string
    inside = (
        text[match.start() - 1 : match.start()].isalnum()
        and text[match.end() : match.end() + 1].isalnum()
    )
    return match[0] if inside and match[0][0] == "_" else "".join(f"\\{char}" for char in match[0])


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, with an ellipsis where it was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _data(text: str) -> str:
    """A message as the runner takes it apart (actions/toolkit, packages/core/src/command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str | int) -> str:
    return (
        _data(one_line(shortened(str(value), _LONGEST_PROPERTY)))
        .replace(":", "%3A")
        .replace(",", "%2C")
    )
