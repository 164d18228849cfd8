"""Help: what ``--help`` prints beside the options, within 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.ground.wrapped_lines import lines_of_words

WIDTH = 78
"""What argparse keeps to on a terminal of 80 columns."""
_COMMAND_WIDTH = 38
DESCRIPTION = "Find out what uses your GPU memory, why it ran out, and what to change."
EXAMPLES = (
    ("vramlens run train.py --epochs 3", "run your program unchanged and record it"),
    ("vramlens predict --cards 24G train.py", "predict its peak before it runs"),
    ("vramlens explain snapshot.pickle", "the peak, what uses it, what to do"),
    ("vramlens explain train.log", "an out-of-memory error message"),
    ("vramlens explain trace.json.gz", "a PyTorch profiler trace"),
    ("vramlens explain", "a real failure that ships with vramlens"),
    ("vramlens leaks run.vram", "what grows, and when it will fail"),
    ("vramlens view run.vram -o run.html", "the memory timeline, as one HTML file"),
    ("vramlens diff before.vram after.vram", "what changed between two runs"),
    ("vramlens check run.vram --update", "a memory budget for CI"),
    ("vramlens ranks runs/r1", "which rank differs, and why"),
    ("vramlens top", "every GPU and process, live"),
    ("vramlens replay run.vram --conf expandable_segments:True", "would this setting have helped?"),
    ("vramlens tune run.vram --cap 24G", "which settings fit in 24 GiB"),
    ("vramlens doctor", "check whether recording works here"),
)
_EXIT_CODES = """\
exit codes: 0 success, 1 check or --fail found a problem, 2 wrong usage,
3 input missing or refused, or output not written, 130 Ctrl-C; run returns the
program's own exit code
"""


def main_epilog() -> str:
    """The examples of the whole command line, and its exit codes."""
    return f"{_examples(EXAMPLES)}\n{_EXIT_CODES}"


def verb_epilog(note: str | None, examples: Sequence[tuple[str, str]]) -> str:
    """A verb's note, paragraph by paragraph, and its examples. A paragraph that is indented is
    code and stays as it is.
    """
    paragraphs = (note or "").split("\n\n") if note else []
    shown = [text if text.startswith("  ") else filled(text) for text in paragraphs]
    return "\n\n".join([*shown, _examples(examples)])


def filled(text: str) -> str:
    """A text in lines that fit."""
    return "\n".join(lines_of_words(" ".join(text.split()), WIDTH))


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    """The examples with what they do beside them; below those that leave no room for it."""
    lines = ["examples:"]
    for command, meaning in examples:
        beside = f"  {command:<{_COMMAND_WIDTH}}  {meaning}"
        if len(command) <= _COMMAND_WIDTH and len(beside) <= WIDTH:
            lines.append(beside)
        else:
            lines += [f"  {command}", f"      {meaning}"]
    return "\n".join(lines) + "\n"
