"""``python -m floatscope._demo.tether PARENT ARGUMENTS...``: become ``python ARGUMENTS...`` and die with PARENT.

So nothing that the demo has started can outlive it.
"""

from __future__ import annotations

import os
import sys

from floatscope._leash import die_with_parent


def main() -> None:
    parent, arguments = int(sys.argv[1]), sys.argv[2:]
    die_with_parent(parent)
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
