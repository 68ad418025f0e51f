"""``python -m floatscope`` is the floatscope program."""

import sys

from floatscope._cli import main

sys.exit(main())
