"""`anyformer train` as a file, for launchers that need a file: torchrun, accelerate launch, deepspeed."""

import sys

from anyformer_main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
