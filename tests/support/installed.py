"""Where the vramlens under test lies, for processes that a test starts."""

from pathlib import Path

import vramlens

PYTHON_PATH = str(Path(vramlens.__path__[0]).parent)
"""For ``PYTHONPATH``: the checkout's ``src`` has no native core unless one was built in it."""
