"""``python -m vramlens``."""

import sys

if not getattr(sys.flags, "safe_path", False):
    # For -m Python puts the present folder there: what lies in it is not to be run.
    sys.path[0] = f"{sys.exec_prefix}/bin"

from vramlens.cli.main import main

sys.exit(main())
