"""Where webhooks may connect to, decided on the resolved address at connect time.

Public addresses are allowed. Loopback, private, link-local and other special addresses need a line in the operator's
list: the host name, the address or a network around it. Addresses of cloud metadata services hand out credentials; they
need a line that spells out the very address.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import httpcore

__all__ = ["ForbiddenAddressError", "Guard", "GuardedBackend", "Reply", "Resolver", "Transport", "resolve"]

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> addresses; ``OSError`` when the name is unknown."""

_METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)
_WITHIN_LAST = tuple(map(IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")))
"""Networks whose last 32 bits are an IPv4 address: NAT64, compatible (RFC 4291) and translated ones (RFC 2765)."""
_ISATAP = 0x5EFE
_SPECIAL = tuple(
    map(
        ip_network,
        (
            "64:ff9b:1::/48",  # NAT64 of one's own, RFC 8215
            "::/96",
            "::ffff:0:0:0/96",
            "fec0::/10",  # site-local, RFC 3879
            "3fff::/20",  # documentation, RFC 9637
            "5f00::/16",  # segment routing, RFC 9602
            "192.88.99.0/24",  # relays of 6to4, RFC 7526
        ),
    )
)
"""What Python's ``is_global`` takes for public in some or all versions."""
_CONNECT_S, _WRITE_S, _READ_S, _POOL_S = 5.0, 5.0, 10.0, 10.0
_TOTAL_S = 20.0


class ForbiddenAddressError(Exception):
    """The name resolves to nothing that webhooks may connect to; the text says what an operator can do."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of ``host`` by the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _meant(address: Address) -> list[Address]:
    """``address`` and the IPv4 addresses that an IPv6 one stands for."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    address = IPv6Address(int(address))  # without the zone, which makes another address of it
    meant: list[Address] = [address]
    if address.sixtofour is not None:
        meant.append(address.sixtofour)
    if address.teredo is not None:
        meant.append(address.teredo[1])
    within = int(address) > 1 and any(address in network for network in _WITHIN_LAST)  # :: and ::1 are no IPv4
    if within or (int(address) >> 32) & 0xFDFFFFFF == _ISATAP:
        meant.append(last)
    return meant


def _is_special(address: Address) -> bool:
    if not address.is_global or address.is_multicast or address in _METADATA:
        return True
    return any(address.version == network.version and address in network for network in _SPECIAL)


class Guard:
    """The operator's list. ``ValueError`` for an entry that is neither a host name nor an address or network."""

    def __init__(self, allow: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._networks = []
        self._literal: set[Address] = set()
        for entry in allow:
            try:
                network = ip_network(entry, strict=False)
            except ValueError:
                if "/" in entry or not entry.strip():
                    raise ValueError(f"{entry!r} is neither a host name nor a network such as 10.0.0.0/8") from None
                self._names.add(entry.lower().rstrip("."))
                continue
            self._networks.append(network)
            if network.num_addresses == 1:
                self._literal.add(network.network_address)

    def permits(self, host: str, address: str) -> bool:
        """Whether a webhook for ``host`` may connect to ``address``."""
        meant = _meant(ip_address(address))
        special = [each for each in meant if _is_special(each)]
        if any(each in _METADATA and each not in self._literal for each in special):
            return False
        if host.lower().rstrip(".") in self._names:
            return True
        return all(any(each.version == net.version and each in net for net in self._networks) for each in special)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves by itself and connects only to addresses that ``guard`` permits, so that no second look-up can give
    another answer than the one that was checked."""

    def __init__(self, guard: Guard, resolver: Resolver = resolve) -> None:
        self._guard = guard
        self._resolver = resolver
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first permitted address that answers."""
        try:
            async with asyncio.timeout(timeout):
                found = await self._resolver(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from error
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error.strerror or error}") from error
        except UnicodeError as error:
            raise httpcore.ConnectError(f"{host} is no host name: {error}") from error
        permitted = [address for address in dict.fromkeys(found) if self._guard.permits(host, address)]
        if not permitted:
            raise ForbiddenAddressError(
                f"{host} is at {', '.join(found) or 'no address'}, where webhooks may not connect; an operator can "
                "allow it with --webhook-allow (FLOATSCOPE_WEBHOOK_ALLOW)"
            )
        failure: Exception | None = None
        for address in permitted:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never: a webhook goes to a host."""
        raise ForbiddenAddressError("webhooks do not connect to Unix sockets")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A receiver's answer: headers by names in lower case, the beginning of the body where that was asked for."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Transport:
    """Posts to receivers. No redirect is followed and no proxy is used."""

    def __init__(self, guard: Guard, resolver: Resolver = resolve, *, connections: int = 64) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=connections,
            max_keepalive_connections=connections // 4,
            keepalive_expiry=5.0,
            network_backend=GuardedBackend(guard, resolver),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, keep: int = 0) -> Reply:
        """One try, which takes 20 s at most whatever the receiver does. ``keep``: bytes of the answer's body that are
        wanted; no more is read. Raises ``ForbiddenAddressError``, ``TimeoutError`` or one of httpcore's exceptions."""
        timeout = {"connect": _CONNECT_S, "read": _READ_S, "write": _WRITE_S, "pool": _POOL_S}
        async with (
            asyncio.timeout(_TOTAL_S),
            self._pool.stream(
                "POST", url, headers=list(headers.items()), content=body, extensions={"timeout": timeout}
            ) as answer,
        ):
            found = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in answer.headers}
            kept = b""
            if keep:
                async for piece in answer.aiter_stream():
                    kept += piece
                    if len(kept) >= keep:
                        break
            return Reply(status=answer.status, headers=found, body=kept[:keep])

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()
