"""Hosts that messages may be sent to.

Lives here: `Hosts`: which network addresses of a name may be connected to. May not: a connection. Design: a
client chooses the addresses of its tasks, so without this check it could send requests into the network of
the gateway. A name is resolved once for a connection, all its addresses are checked, and the connection is
made to a checked one: a name that resolves to another address a moment later changes nothing. Hosts that the
operator has named are not checked. Names may take long to resolve, so that has threads apart from those
for the name of the database. A client may name hosts whose name servers are silent, so a part of the threads
is kept for names that were resolved before.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_V4_COMPATIBLE = ipaddress.ip_network("::/96")
# not public either, although the standard library of some or all versions says so: translation within a
# site, documentation, relays of 6to4, special purposes (one cloud's metadata service too), and the machine of
# a cloud that answers its guests
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        ("64:ff9b:1::/48", "3fff::/20", "192.88.99.0/24", "192.0.0.0/24", "168.63.129.16/32"),
    )
)
# the middle of an address that a tunnel takes to an address of the older protocol (ISATAP)
_TUNNEL = 0x5EFE
_LOOKUPS = 48
_LOOKUPS_KNOWN = 16
_KNOWN_MAX = 4096


class Forbidden(Exception):
    """A host has an address that messages may not be sent to."""


class Hosts:
    """The hosts that messages may be sent to.

    Args:
        private: hosts that may have private addresses, each as `name` or `.name` for all names below it, with
            `:port` or for all ports.
    """

    def __init__(self, private: Iterable[str]) -> None:
        self._private = frozenset(name.lower() for name in private)
        self._lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="lookup")
        self._lookups_known = ThreadPoolExecutor(_LOOKUPS_KNOWN, thread_name_prefix="lookup known")
        self._known: dict[str, None] = {}

    def is_named(self, host: str, port: int) -> bool:
        """Return whether the operator has named this host."""
        shown = f"[{host}]" if ":" in host else host
        labels = host.split(".")
        names = {host, shown, *(".".join(["", *labels[n:]]) for n in range(1, len(labels)))}
        return not self._private.isdisjoint(names | {f"{name}:{port}" for name in names})

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the network addresses of a host, in the order in which they are to be tried.

        Args:
            host: its name or address, in lower case.
            port: the port.

        Raises:
            Forbidden: one of them is not public or is this machine's, and the operator has not named the
                host.
            OSError: it has none.
        """
        addresses = [host] if _is_address(host) else await self._resolved(host, port)
        if not self.is_named(host, port):
            for address in addresses:
                if not is_public(address):
                    raise Forbidden(f"{host} has the address {address}, which is not public")
                if is_own(address, port):
                    raise Forbidden(f"{host} has the address {address}, which is this machine's")
        return addresses

    async def _resolved(self, host: str, port: int) -> list[str]:
        look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        threads = self._lookups_known if host in self._known else self._lookups
        try:
            found = await asyncio.get_running_loop().run_in_executor(threads, look_up)
        except UnicodeError as error:
            raise OSError(f"{host!r} is no name of a host") from error
        except asyncio.CancelledError:
            # it takes too long now
            self._known.pop(host, None)
            raise
        self._known[host] = self._known.pop(host, None)
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return list(dict.fromkeys(str(one[4][0]) for one in found))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Return whether an address belongs to no private, local or special network."""
    found: Address = ipaddress.ip_address(address.partition("%")[0])
    inner = _inner(found)
    if inner is not None:
        return is_public(str(inner))
    special = found.is_multicast or found.is_reserved or found.is_unspecified
    special = special or any(found in network for network in _NOT_PUBLIC)
    if isinstance(found, ipaddress.IPv6Address):
        special = special or found.is_site_local or (int(found) >> 32) & 0xFDFFFFFF == _TUNNEL
    return found.is_global and not special


def is_own(address: str, port: int) -> bool:
    """Return whether an address belongs to an interface of this machine.

    Services behind its firewall listen there too. The kernel is asked from where it would send there; nothing
    is sent.
    """
    found: Address = ipaddress.ip_address(address.partition("%")[0])
    found = _inner(found) or found
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((str(found), port))
            return ipaddress.ip_address(asked.getsockname()[0].partition("%")[0]) == found
    except OSError:
        # there is no way to it
        return False


def _inner(address: Address) -> ipaddress.IPv4Address | None:
    """Return the address of the older protocol that a gateway or the kernel would connect to instead."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
