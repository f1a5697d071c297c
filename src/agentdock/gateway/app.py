"""The gateway as one application, and how it is served: checks first, then routes, every failure with a status."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from agentdock.calls import CallProblem
from agentdock.discovery import Token
from agentdock.dock import Dock
from agentdock.gateway.access import EVERY_ADDRESS, Access, Handler, add_cors, guard
from agentdock.gateway.answers import Refused, error_answer, legacy_wanted
from agentdock.gateway.health import HealthRoutes
from agentdock.gateway.names import ToolNames
from agentdock.gateway.rest import Routes, problem_answer

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75.0


class CannotListen(Exception):
    """The address is taken or not ours; the text names it and the way out."""


def build_app(dock: Dock, *, token: Token) -> web.Application:
    from agentdock.gateway.mcp_routes import McpRoutes

    options = dock.config.gateway
    access = Access(options, token=token.value, token_place=token.place)
    app = web.Application(
        client_max_size=options.max_body_bytes, middlewares=[errors_as_json(options.legacy_errors), guard(access)]
    )
    app.on_response_prepare.append(add_cors)
    names = ToolNames(dock)
    app.add_routes(Routes(dock, names).table())
    McpRoutes(dock, names).add_to(app)
    app.add_routes(HealthRoutes(dock, access).table())
    return app


@asynccontextmanager
async def serving(dock: Dock, *, token: Token, grace_seconds: float = 2.0) -> AsyncIterator[str]:
    """Serve ``dock`` where its configuration says, port 0 being any free one; yield the real URL.

    A caller that goes away has its call cancelled. Raises ``CannotListen``.
    """
    options = dock.config.gateway
    runner = web.AppRunner(
        build_app(dock, token=token),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=grace_seconds,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {options.host}:{options.port}: {error.strerror or error}; "
                "end what uses it, or choose another with --port (0 takes a free one)"
            ) from None
        yield url_of(options.host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


def url_of(host: str, port: int) -> str:
    """Where this machine reaches the gateway."""
    if host in EVERY_ADDRESS:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def errors_as_json(legacy: bool) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Middleware that turns every failure into the error envelope with its status."""

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except CallProblem as problem:
            return problem_answer(request, problem, legacy=legacy)
        except Refused as refused:
            # Who is not let in must not mistake the answer for a success, whatever form it asks for.
            old_form = refused.status not in (401, 403) and legacy_wanted(request.headers, legacy)
            answer = error_answer(
                refused.status, refused.code, str(refused), retryable=refused.retryable, legacy=old_form
            )
            if refused.status == 401:
                answer.headers["WWW-Authenticate"] = 'Bearer realm="agentdock"'
            return answer
        except web.HTTPRequestEntityTooLarge:
            limit = request.client_max_size
            return error_answer(413, "too_large", f"the body is above max_body_bytes of [gateway], {limit}")
        except web.HTTPException as error:
            message = f"{request.method} {request.path}: {error.reason}"
            return error_answer(error.status, error.reason.lower().replace(" ", "_"), message)

    return answered
