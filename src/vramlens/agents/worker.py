"""A process for one answer: a recording may come from anywhere, and the server must outlive it.

python -m vramlens.agents.worker '{"tool": "leaks", "arguments": {"path": "run.vram"}}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from vramlens.allowance import Exhausted, allowance
from vramlens.errors import UnsafeInput, VramlensError
from vramlens.foreign_text import one_line, without_controls


def main(argv: Sequence[str]) -> int:
    """Writes the answer, or one line on standard error; the exit code."""
    request = json.loads(argv[0])
    try:
        text = _answered(request["tool"], request["arguments"])
    except VramlensError as error:
        return _refused(error, error.exit_code)
    except (TypeError, OSError) as error:
        return _refused(error, UnsafeInput.exit_code)
    sys.stdout.buffer.write(without_controls(text).encode("utf-8", "backslashreplace"))
    return 0


def _refused(error: Exception, code: int) -> int:
    """The exit code, once the one line of an error is written."""
    line = one_line(" ".join(str(error).split("\n")))
    sys.stderr.buffer.write(f"{line}\n".encode("utf-8", "backslashreplace"))
    return code


def _answered(tool: str, arguments: dict[str, object]) -> str:
    from vramlens.agents.tool_answers import ANSWERS

    try:
        with allowance() as allowed:
            return ANSWERS[tool](**arguments)
    except Exhausted:
        raise UnsafeInput(allowed.sentence()) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
