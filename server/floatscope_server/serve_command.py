"""What ``floatscope server`` does: mistakes are found before anything heavy is imported."""

from __future__ import annotations

import argparse
import gc
import logging
import socket
import sys
from pathlib import Path

from floatscope_server.allocator import keep_little
from floatscope_server.listener import address_of, listen
from floatscope_server.settings import Settings
from floatscope_server.tokens import read_token_file
from floatscope_server.turns import short_turns

__all__ = ["serve"]


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the answer of the command


def _fail(text: str) -> int:
    print(f"floatscope: {text}", file=sys.stderr)  # noqa: T201 - the answer of the command
    return 2


def serve(args: argparse.Namespace) -> int:
    """Serve as ``args`` say, or back up, check or repair; 2 if that cannot be done."""
    if args.backup or args.check_store or args.repair_store:
        return _on_the_store(args)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.from_env(
            host=args.host,
            port=args.port,
            data=Path(args.data) if args.data else None,
            db=args.db,
            token_file=Path(args.token_file) if args.token_file else None,
            apprise_file=Path(args.apprise_file) if args.apprise_file else None,
            public_url=args.public_url,
            dump_bytes=args.dump_bytes,
            allowed_hosts=tuple(args.allowed_host) if args.allowed_host else None,
            webhook_allow=tuple(args.webhook_allow) if args.webhook_allow else None,
        )
        if settings.token_file is not None:
            tokens, fresh = read_token_file(settings.token_file)
            if fresh:
                _say(f"fresh tokens, kept in {settings.token_file} and not shown again:")
                for scope, token in tokens:
                    _say(f"  {scope} {token}")
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot use the token file {args.token_file}: {error.strerror}")
    try:
        listener = listen(settings)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return _fail(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another with --port or --host"
        )
    with listener:
        return _serve(settings, listener)


def _on_the_store(args: argparse.Namespace) -> int:
    try:
        settings = Settings.of_store(data=Path(args.data) if args.data else None, db=args.db)
    except ValueError as error:
        return _fail(str(error))
    try:
        from floatscope_server.database import NoStoreError, StoreError, database_of
        from floatscope_server.store.checking import check, repair
    except ModuleNotFoundError as error:
        return _fail(f'{error.name} is missing; type: pip install "floatscope[server]"')
    try:
        database = database_of(settings)
        if args.backup:
            _say(f"copied to {database.backup(Path(args.backup))}")
            return 0
        return repair(database, _say) if args.repair_store else check(database, _say)
    except NoStoreError as error:
        return _fail(f"{error.fact}; give its folder with --data DIR, or its address with --db URL")
    except StoreError as error:
        return _fail(str(error))


def _serve(settings: Settings, listener: socket.socket) -> int:
    keep_little()
    try:
        from floatscope_server.app import create_app
        from floatscope_server.database import StoreError
        from floatscope_server.serving import Server
    except ModuleNotFoundError as error:
        return _fail(f'{error.name} is missing; type: pip install "floatscope[server]"')

    try:
        app = create_app(settings)
        server = Server(app, listener, on_ready=lambda: _say(f"floatscope listening on http://{address_of(listener)}"))
        store = app.state.services.store
        # What restarts servers can, then; one that answers nothing but 503 helps nobody.
        store.on_given_up = server.stop
        app.state.services.prepare()
    except (StoreError, ValueError) as error:
        return _fail(str(error))
    _keep_what_is_loaded()
    with short_turns():
        return 0 if server.serve_forever() and not store.given_up else 2


def _keep_what_is_loaded() -> None:
    """The 150,000 objects of modules, models and routes stay for good. A full collection looks at each of them, 0.1 s
    in which no other thread runs, and finds some 50 objects that are free."""
    gc.collect()
    gc.freeze()
