"""`anyformer evaluate` as a file; it takes the same arguments."""

import sys

from anyformer_main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
