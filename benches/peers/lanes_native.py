"""`benches/lanes.rs`, built already, in the place of this process: it obeys as Python peers do (harness/serve.py)."""

from __future__ import annotations

import os
import sys

from harness.serve import end_with_parent


def main() -> None:
    end_with_parent()
    words = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    os.execv(words["--program"], ["lanes", *words["--words"].split("\t")])


if __name__ == "__main__":
    main()
