"""`python -m middlechain`: the command line."""

import sys

from middlechain.cli import main

if __name__ == "__main__":
    sys.exit(main())
