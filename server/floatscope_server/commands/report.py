"""``floatscope report``: a run as one file for a bug report or a colleague."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from floatscope_server.commands.source import UnansweredError, configure_place, no_such_run
from floatscope_server.settings import Settings

HELP = "write a run as one HTML file that opens without a server"
EXAMPLE = "floatscope report demo -o demo.html --data ./floatscope-data"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", metavar="RUN", help="the run's name")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write, or - for stdout")
    parser.add_argument("--language", choices=("en", "zh"), default="en", help="of all words but names (en)")
    configure_place(parser)
    parser.add_argument("--force", action="store_true", help="overwrite what is there")


def run(args: argparse.Namespace) -> int:
    """Write it; 2 if that cannot be done."""
    target = Path(args.output)
    try:
        if args.output == "-":
            sys.stdout.buffer.write(_content(args))
            return 0
        if target.exists() and not args.force:
            raise UnansweredError(f"{target} is there already; overwrite it with --force")
        # Where a link leads to: of /dev/stdout, to replace the link would be to lose it.
        place = Path(os.path.realpath(target))
        if place.exists() and not place.is_file():
            raise UnansweredError(f"{target} is no file that could be replaced; write - for stdout")
        _write(place, _content(args))
    except UnansweredError as error:
        print(f"floatscope report: {error}", file=sys.stderr)
        return 2
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB", file=sys.stderr)
    return 0


def _write(target: Path, content: bytes) -> None:
    """The file appears once it is whole."""
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(file.name).chmod(0o666 & ~umask)
        Path(file.name).replace(target)
    except OSError as error:
        raise UnansweredError(f"cannot write {target}: {error.strerror}") from error


def _content(args: argparse.Namespace) -> bytes:
    from floatscope._client._client import Client
    from floatscope._client._errors import ClientError

    server = args.server or (None if args.data else os.environ.get("FLOATSCOPE_SERVER"))
    if server:
        try:
            return Client(server).report(args.name, language=args.language)
        except (ClientError, ValueError) as error:
            if isinstance(error, ClientError) and error.code == "unknown_run":
                raise no_such_run(args.name) from None
            raise UnansweredError(str(error)) from error
    try:
        from floatscope_server.database import StoreError
        from floatscope_server.export.source import folder
        from floatscope_server.query.line import UnknownRunError
        from floatscope_server.report.document import report
    except ModuleNotFoundError as error:
        raise UnansweredError(f'{error.name} is missing; type: pip install "floatscope[server]"') from error
    try:
        # A folder that is named is meant, whatever the environment says of a database.
        with folder(Settings(data=Path(args.data)) if args.data else Settings.of_store()) as source:
            return report(source, args.name, language=args.language, at=datetime.now(UTC)).encode()
    except UnknownRunError:
        raise no_such_run(args.name) from None
    except (StoreError, ValueError) as error:
        raise UnansweredError(str(error)) from error
