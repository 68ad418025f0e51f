"""First on PYTHONPATH under ``floatscope run``: attaches this interpreter, then runs the ``sitecustomize`` behind it.

It may run in any interpreter, of any version, with floatscope installed or not: nothing but the oldest language here.
"""

import os
import sys


class _ToldOnce:
    """In an interpreter that cannot attach: says so when torch is imported, the first time in a tree of processes."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name == "torch":
            sys.meta_path.remove(self)
            told = os.environ.get("FLOATSCOPE_TOLD", "").split()
            if "interpreter" not in told:
                os.environ["FLOATSCOPE_TOLD"] = " ".join([*told, "interpreter"])
                _say(  # type: ignore[no-untyped-call]
                    "floatscope: not attached: floatscope is not installed for " + sys.executable + "; the program "
                    "runs without telemetry. To watch it: " + sys.executable + " -m pip install floatscope\n"
                )


def _say(text):  # type: ignore[no-untyped-def]
    try:  # noqa: SIM105 (contextlib would be one more import of each process)
        sys.stderr.write(text)
    except Exception:  # noqa: S110 (closed, full or read by nobody: the program goes on)
        pass


def _attach():  # type: ignore[no-untyped-def]
    if os.environ.get("FLOATSCOPE_ATTACH") != "1" or os.environ.get("FLOATSCOPE_DISABLED", "") not in ("", "0"):
        return
    try:
        import floatscope._attach.startup  # noqa: F401 (what it does, it does when it is imported)
    except Exception:
        sys.meta_path.insert(0, _ToldOnce())


def _run_the_next():  # type: ignore[no-untyped-def]
    """As if this one were not there: neither its folder nor its name stays."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    sys.modules.pop("sitecustomize", None)
    # What it raises, an ImportError where there is none above all, is for ``site``, which expects it.
    __import__("sitecustomize")


_attach()  # type: ignore[no-untyped-call]
_run_the_next()  # type: ignore[no-untyped-call]
