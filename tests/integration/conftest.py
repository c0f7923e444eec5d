"""Makes the helpers beside these tests importable: `import mp`."""

from __future__ import annotations

import pathlib
import sys

# pytest's importlib mode does not put a test's folder on the path.
sys.path.insert(0, str(pathlib.Path(__file__).parent))
