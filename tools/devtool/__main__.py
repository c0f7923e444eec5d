"""`python -m devtool`: the command line of `./dev`."""

import sys

from devtool.main import main

sys.exit(main())
