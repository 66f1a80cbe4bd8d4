"""``python -m chatstack``."""

import sys

from chatstack.cli import main

if __name__ == "__main__":
    sys.exit(main())
