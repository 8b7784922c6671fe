"""Prints much on both streams."""

import os
import sys

for number in range(2000):
    print(f"line {number} " + "x" * 200)
print("to stderr", file=sys.stderr)
print("virtualenv", os.environ.get("VIRTUAL_ENV"), sys.prefix)
