"""`python -m pretune` is `pretune`."""

import sys

from pretune.cli import main

if __name__ == "__main__":
    sys.exit(main())
