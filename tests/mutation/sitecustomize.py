"""Python runs it at its start: what a test starts notes its lines as well, where seen_lines does."""

import os
import sys

if hasattr(sys, "monitoring") and {"SEEN_LINES", "PYTEST_CURRENT_TEST"} <= {*os.environ}:
    import seen_lines

    seen_lines.watch()
    seen_lines.of_child()
