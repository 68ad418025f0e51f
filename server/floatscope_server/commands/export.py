"""``floatscope export``: take a run elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope_server.commands.source import UnansweredError, configure_place, no_such_run
from floatscope_server.settings import Settings

if TYPE_CHECKING:
    from floatscope_server.export.rows import Selection
    from floatscope_server.export.source import Source

HELP = "write a run to a CSV or Parquet file, or as TensorBoard events"
EXAMPLE = "floatscope export demo --to demo.csv --kinds grad,scalar --data ./floatscope-data"

_INSTALL = 'type: pip install "floatscope[server,export]"'


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", metavar="RUN", help="the run's name")
    parser.add_argument(
        "--to", required=True, metavar="PATH", help="FILE.csv, FILE.parquet, or a folder for TensorBoard"
    )
    parser.add_argument("--kinds", type=_names, metavar="NAME,...", help="grad, act, ..., and scalar (all)")
    parser.add_argument("--metrics", type=_names, metavar="NAME,...", help="absmax, rms, headroom, ... (all)")
    parser.add_argument("--layers", type=_names, metavar="NAME,...", help="only these layers (all)")
    parser.add_argument("--from", dest="first", type=int, metavar="STEP", help="first step")
    parser.add_argument("--until", dest="last", type=int, metavar="STEP", help="last step, inclusive")
    configure_place(parser)
    parser.add_argument("--force", action="store_true", help="overwrite what is there")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def run(args: argparse.Namespace) -> int:
    """Write it; 2 if that cannot be done."""
    try:
        _export(args)
    except UnansweredError as error:
        print(f"floatscope export: {error}", file=sys.stderr)
        return 2
    return 0


def _export(args: argparse.Namespace) -> None:
    target = Path(args.to)
    try:
        from floatscope_server.export.files import in_folder, whole_file
        from floatscope_server.export.rows import Selection

        write = _writer(target)
    except ModuleNotFoundError as error:
        raise UnansweredError(f"{error.name} is missing; {_INSTALL}") from error
    place = whole_file if target.suffix in (".csv", ".parquet") else in_folder
    with _source(args) as source:
        selection = Selection(
            source,
            args.name,
            kinds=args.kinds,
            metrics=args.metrics,
            layers=args.layers,
            first=args.first,
            last=args.last,
        )
        try:
            place(target, lambda path: write(selection, path), force=args.force)
        except OSError as error:
            reason = error if isinstance(error, FileExistsError) and error.errno is None else error.strerror
            said = f"{reason}" if reason is error else f"cannot write {target}: {reason}; nothing was left there"
            raise UnansweredError(said) from error
    if selection.coarse > 1:
        print(
            f"floatscope export: some steps are kept in columns of {selection.coarse} only; each of their rows shows "
            "the worst of a column",
            file=sys.stderr,
        )


def _writer(target: Path) -> Callable[[Selection, Path], None]:
    if target.suffix == ".csv":
        from floatscope_server.export.csv_file import write_csv

        return write_csv
    if target.suffix == ".parquet":
        from floatscope_server.export.parquet_file import write_parquet

        return write_parquet
    if target.suffix and not target.is_dir():
        raise UnansweredError(f"--to {target}: write FILE.csv, FILE.parquet, or a folder for TensorBoard")
    from floatscope_server.export.tensorboard_files import write_events

    return write_events


@contextmanager
def _source(args: argparse.Namespace) -> Iterator[Source]:
    from floatscope._client._client import Client
    from floatscope._client._errors import ClientError
    from floatscope_server.database import StoreError
    from floatscope_server.export.source import folder
    from floatscope_server.query.line import UnknownRunError

    server = args.server or (None if args.data else os.environ.get("FLOATSCOPE_SERVER"))
    try:
        if server:
            yield Client(server)
        else:
            # A folder that is named is meant, whatever the environment says of a database.
            with folder(Settings(data=Path(args.data)) if args.data else Settings.of_store()) as source:
                yield source
    except UnknownRunError:
        raise no_such_run(args.name) from None
    except (ClientError, StoreError, ValueError) as error:
        if isinstance(error, ClientError) and error.code == "unknown_run":
            raise no_such_run(args.name) from None
        raise UnansweredError(str(error)) from error
