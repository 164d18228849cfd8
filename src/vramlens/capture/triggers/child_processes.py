"""Child processes that a watched program starts with ``spawn``, as
``torch.multiprocessing.spawn`` does.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Any

from vramlens.capture.recording.session import RecordingPlan
from vramlens.capture.warn import harmless

_VARIABLE = "VRAMLENS_PLAN"
_BEGINS = "from multiprocessing.spawn import "
# Whatever is wrong with vramlens in the child's surroundings is not the child's trouble.
_BEFORE = (
    "exec('try:\\n from vramlens.program import begin_in_child as b\\n b()\\nexcept Exception:"
    " pass'); "
)


@harmless("following child processes")
def follow_children(plan: RecordingPlan) -> None:
    """Has children be watched by the same plan. A forked child cannot use the GPU; this is about
    ``spawn``.

    A child begins to record only when it uses the GPU, so DataLoader workers cost nothing and leave
    no file.
    """
    from multiprocessing import spawn

    os.environ[_VARIABLE] = json.dumps(asdict(plan))
    command_line: Any = spawn.get_command_line

    def with_watch(**facts: Any) -> list[Any]:
        parts: list[Any] = command_line(**facts)  # the interpreter's path is in bytes
        return [
            _BEFORE + part if isinstance(part, str) and part.startswith(_BEGINS) else part
            for part in parts
        ]

    spawn.get_command_line = with_watch


@harmless("reading the parent's plan")
def plan_for_child() -> RecordingPlan | None:
    """The plan that the parent left; None where there is none."""
    text = os.environ.get(_VARIABLE)
    return None if text is None else replace(RecordingPlan(**json.loads(text)), is_child=True)
