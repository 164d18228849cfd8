"""Lets every test import the helpers that lie beside this file (``oracle``, ``recordings``)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
