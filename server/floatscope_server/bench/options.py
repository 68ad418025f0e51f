"""What ``bench ingest`` and ``bench query`` have in common: options, where the store is, how the figures come out."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope_server.settings import Settings

if TYPE_CHECKING:
    from floatscope_server.bench.measure import Plan

__all__ = ["configure", "measured", "number", "plan_of", "say", "show"]


def configure(parser: argparse.ArgumentParser, *, steps: int) -> None:
    """Add the options that both have."""
    parser.add_argument("--steps", type=number, default=steps, help=f"steps of the run ({steps})")
    parser.add_argument("--layers", type=number, default=300, help="layers of it (300)")
    parser.add_argument("--kinds", type=_kinds, default=2, help="kinds of each layer, 1 to 6 (2)")
    parser.add_argument("--ranks", type=number, default=1, help="ranks, each with all layers (1)")
    parser.add_argument("--batch", type=number, default=10, help="steps of a block, fewer if they do not fit (10)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--db", metavar="URL", help="an empty database, postgresql://... or sqlite:///PATH")
    where.add_argument("--data", metavar="DIR", help="an empty folder, kept; without it one that is removed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--peers", action="store_true", help="measure others with the same data, where installed")


def number(text: str) -> int:
    """A whole number above 0, also as 1e5."""
    value = float(text)
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(value)


def _kinds(text: str) -> int:
    value = number(text)
    if value > 6:
        raise argparse.ArgumentTypeError(f"there are 6 kinds, not {text}")
    return value


@contextmanager
def plan_of(args: argparse.Namespace, *, http: bool) -> Iterator[Plan]:
    """With a store that is empty; ``BenchError`` if the one that is named is not."""
    from floatscope_server.bench.measure import Plan
    from floatscope_server.bench.sending import BenchError

    with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as folder:
        settings = Settings(data=Path(args.data or folder), db=args.db)
        place = args.data or args.db
        if not settings.postgres and settings.database.exists():
            raise BenchError(f"{place} has a store already; name an empty one, or none")
        if settings.postgres and _has_store(settings):
            raise BenchError("the database has a store already; name an empty one")
        yield Plan(
            steps=args.steps,
            layers=args.layers,
            kinds=args.kinds,
            ranks=args.ranks,
            batch=args.batch,
            settings=settings,
            http=http,
        )


def _has_store(settings: Settings) -> bool:
    from floatscope_server.database import NoStoreError, database_of

    reader = database_of(settings).reader()
    try:
        reader.check()
    except NoStoreError:
        return False
    finally:
        reader.close()
    return True


def say(line: str) -> None:
    """How far it is, on stderr."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the progress of the command


def show(args: argparse.Namespace, report: dict[str, object], text: Callable[[dict[str, object]], str]) -> None:
    """The figures, for programs or for people."""
    print(json.dumps(report, indent=1) if args.json else text(report))  # noqa: T201 - the answer of the command


def measured(name: str, measure: Callable[[], None]) -> int:
    """Exit status: 0, or 2 with one line if it cannot be measured."""
    try:
        measure()
    except ModuleNotFoundError as error:
        return _refuse(name, f'{error.name} is missing; type: pip install "floatscope[server]"')
    except ValueError as error:
        return _refuse(name, str(error))
    except Exception as error:
        from floatscope_server.bench.sending import BenchError
        from floatscope_server.database import StoreError

        if not isinstance(error, BenchError | StoreError):
            raise
        return _refuse(name, str(error))
    return 0


def _refuse(name: str, problem: str) -> int:
    print(f"floatscope bench {name}: {problem}", file=sys.stderr)  # noqa: T201 - the answer of the command
    return 2
