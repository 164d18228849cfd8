"""Starting Python in a process of its own, with the modules of this one and none of the present
folder's.
"""

from __future__ import annotations

import json
import sys

PATHS_OF_PARENT = (
    "import sys; sys.path[:1] = []; import json; sys.path[:] = json.loads(sys.argv[1])"
)
"""How the child's code begins. ``python -c`` puts the present folder first: a ``json.py`` in a
checkout that somebody else made would be run before anything here is.
"""


def paths_for_child() -> str:
    """The first argument of a child whose code begins so."""
    return json.dumps(sys.path)
