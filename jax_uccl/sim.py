"""`python -m jax_uccl.sim`: the transport on simulated fabrics; the same as `jax-uccl sim`.

The logic is in `jax_uccl/_src/sim_command.py`; `--help` lists the options.
"""

from __future__ import annotations

import sys

from jax_uccl._src.sim_command import main

if __name__ == "__main__":
    sys.exit(main())
