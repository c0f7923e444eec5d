"""`python -m jax_uccl.bench`: measures the running job; the same as `jax-uccl bench`.

As a module, so that `python -m jax_uccl.launch -n 4 -m jax_uccl.bench --tune tuned.json` measures four processes.
The logic is in `jax_uccl/_src/bench_command.py`; `--help` lists the options.
"""

from __future__ import annotations

import sys

from jax_uccl._src.bench_command import main

if __name__ == "__main__":
    sys.exit(main())
