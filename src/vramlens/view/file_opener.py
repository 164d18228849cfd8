"""The page that opens files: it has the native reader in it, and a file is dropped onto it."""

from __future__ import annotations

import base64
import json
import zlib

from vramlens import __version__
from vramlens.analyses.attribution.steps import CALLED_BACK, OPTIMIZER_FRAME
from vramlens.ground.place import LONGEST_NAME, NOT_THE_USERS
from vramlens.trace.stacks import PLUMBING
from vramlens.view.page import STATIC, page_of
from vramlens.view.timeline.marked_regions import BACKENDS

_RULES = '<script type="application/json" id="rules">{rules}</script>\n'
_READER = '<script type="application/octet-stream" id="reader">{reader}</script>\n'


def file_opener_page() -> str:
    """One HTML file onto which a recording is dropped; it loads nothing and sends nothing."""
    reader = zlib.compress((STATIC / "reader.wasm").read_bytes(), 9)
    parts = (
        _RULES.format(rules=_rules()),
        _READER.format(reader=base64.b64encode(reader).decode("ascii")),
    )
    return page_of("".join(parts), "vramlens", script="open", runs_wasm=True)


def _rules() -> str:
    """What the page must know that stands in Python (viewer/src/file/rules.ts)."""
    rules = {
        "vramlens": __version__,
        "not_the_users": NOT_THE_USERS.pattern,
        "plumbing": PLUMBING.pattern,
        "longest_name": LONGEST_NAME,
        "optimizer_frame": OPTIMIZER_FRAME.pattern,
        "called_back": CALLED_BACK.pattern,
        "collectives": BACKENDS,
    }
    return json.dumps(rules).replace("<", "\\u003c")  # nothing in it may end its element
