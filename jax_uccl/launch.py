"""`python -m jax_uccl.launch -n 4 script.py`: runs a script as several local JAX processes.

The logic is in `jax_uccl/_src/launcher.py`; `--help` lists the options.
"""

from __future__ import annotations

import sys

from jax_uccl._src.launcher import main

if __name__ == "__main__":
    sys.exit(main())
