"""The first thing to run: `cargo run --release -- run examples/hello.py`."""

import os
import sys

print(f"hello from Python {sys.version.split()[0]}, process {os.getpid()} of a world of its own")
print(f"I am uid {os.getuid()} in {os.getcwd()}; the host's /root is", end=" ")
print("here" if os.path.exists("/root") else "not here")
