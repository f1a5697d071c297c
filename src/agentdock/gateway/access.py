"""Who may use the gateway: bearer token, Host and Origin, checked before anything else of a request is read."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from agentdock.config import GatewayOptions
from agentdock.gateway.answers import Refused

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
EVERY_ADDRESS = ("0.0.0.0", "::", "")
OPEN_PATHS = ("/livez", "/readyz")
ALLOWED_HEADERS = (
    "Authorization, Content-Type, Accept, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID, "
    "X-AgentDock-Session, X-AgentDock-Run, X-AgentDock-Timeout, X-AgentDock-Legacy-Errors"
)
EXPOSED_HEADERS = "Mcp-Session-Id"

CORS = web.RequestKey("cors", dict[str, str])

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Access:
    """Decides on requests. ``token_place`` tells a caller without the token where it lies, never what it is."""

    def __init__(self, options: GatewayOptions, *, token: str, token_place: str) -> None:
        self._token = token.encode()
        self._token_place = token_place
        self._origins = frozenset(origin.rstrip("/").lower() for origin in options.allowed_origins)
        self._hosts = frozenset(map(str.lower, (*LOOPBACK_NAMES, *options.allowed_hosts)))
        self._any_address = options.host in EVERY_ADDRESS
        if self._any_address:
            self._hosts |= {socket.gethostname().lower()}
        else:
            self._hosts |= {options.host.lower()}

    def check(self, request: web.Request) -> None:
        """Raise ``Refused`` unless the request may go on."""
        self._check_host(request)
        self._check_origin(request)
        if request.path not in OPEN_PATHS and not self.knows(request):
            raise Refused(
                401,
                "unauthorized",
                "this gateway wants its token in the header 'Authorization: Bearer TOKEN': give it with "
                f"--mcp_auth_token or in the environment variable AGENTDOCK_TOKEN; {self._token_place}",
            )

    def knows(self, request: web.Request) -> bool:
        """Whether the request carries the token; the time this takes does not depend on where a guess is wrong."""
        kind, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)

    def cors(self, request: web.Request) -> dict[str, str]:
        """Headers that let a page of an allowed origin read the answer; none for anyone else."""
        origin = request.headers.get(hdrs.ORIGIN, "")
        if origin.lower() not in self._origins:
            return {}
        return {
            hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin,
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, DELETE",
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: ALLOWED_HEADERS,
            hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: EXPOSED_HEADERS,
            hdrs.VARY: hdrs.ORIGIN,
        }

    def _check_host(self, request: web.Request) -> None:
        """A page that rebinds its name to our address sends that name; an address cannot be rebound."""
        host = _host_name(request.host)
        if host in self._hosts or is_loopback(host) or (self._any_address and _is_address(host)):
            return
        raise Refused(
            403, "wrong_host", f"Host {host!r} is not served here; add it to allowed_hosts of [gateway] if it should be"
        )

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or origin.lower() in self._origins:
            return
        parts = urlsplit(origin)
        if parts.scheme == "http" and parts.netloc.lower() == request.host.lower():
            return
        raise Refused(
            403,
            "wrong_origin",
            f"pages of {origin} may not use this gateway; allowed_origins of [gateway] lists others",
        )


def guard(access: Access) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Middleware that lets through what ``access`` allows and answers preflight requests of allowed origins."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        cors = access.cors(request)
        if request.method == hdrs.METH_OPTIONS and cors:
            return web.Response(status=204, headers=cors)
        access.check(request)
        request[CORS] = cors
        return await handler(request)

    return guarded


async def add_cors(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(request.get(CORS) or {})


def _host_name(host: str) -> str:
    """``host`` without its port, without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
