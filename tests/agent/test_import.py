"""What ``import floatscope`` costs a program that may never use it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import floatscope

PROBE = """
import json, sys
before = set(sys.modules)
import floatscope
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_import_is_light() -> None:
    modules = json.loads(subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True).stdout)
    roots = {name.partition(".")[0] for name in modules}
    assert roots.isdisjoint({"torch", "numpy", "msgspec", "websockets", "floatscope_server"})
    assert [name for name in modules if name.startswith("floatscope")] == ["floatscope"]


def test_every_promised_name_exists() -> None:
    for name in floatscope.__all__:
        assert getattr(floatscope, name) is not None
        assert name in dir(floatscope)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = floatscope.nonsense


def test_formats_need_neither_torch_nor_numpy() -> None:
    code = "import sys, floatscope; floatscope.formats['e4m3fnuz']; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
