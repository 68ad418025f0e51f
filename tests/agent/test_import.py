"""What ``import floatscope`` costs a program that may never use it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import floatscope

PROBE = """
import json, sys, time
before = set(sys.modules)
start = time.process_time()
import floatscope
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def test_the_import_is_light() -> None:
    seen = json.loads(subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True).stdout)
    roots = {name.partition(".")[0] for name in seen["modules"]}
    assert roots.isdisjoint({"torch", "numpy", "msgspec", "websockets", "floatscope_server"})
    assert [name for name in seen["modules"] if name.startswith("floatscope")] == ["floatscope"]
    # CPU time, not wall time: measured 1 ms; what would make it heavy takes 50 ms and more.
    assert seen["seconds"] < 0.03


def test_every_promised_name_exists() -> None:
    for name in floatscope.__all__:
        assert getattr(floatscope, name) is not None
        assert name in dir(floatscope)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = floatscope.nonsense


def test_formats_need_neither_torch_nor_numpy() -> None:
    code = "import sys, floatscope; floatscope.formats['e4m3fnuz']; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
