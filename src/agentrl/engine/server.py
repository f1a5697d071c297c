"""An engine behind HTTP: token ids in, token ids out, weights and pauses, and chat for any OpenAI client."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from agentrl.engine import wire
from agentrl.engine.base import Confirmation, Engine, RequestRefused, WeightSource
from agentrl.engine.chat import ChatRenderer, chat_answer, chat_request
from agentrl.errors import ConfigError, ContextTooLong, EngineError, RenderError, WeightsError
from agentrl.types import Completion, Sampling

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
CHAT_DEADLINE_SECONDS = 600.0
DEADLINE_SLACK_SECONDS = 0.05
LOOPBACK = ("127.0.0.1", "::1", "localhost")
EVERY_ADDRESS = ("0.0.0.0", "::", "")

OnReady = Callable[[str], Awaitable[None] | None]


async def serve(
    engine: Engine,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    model_name: str,
    renderer: ChatRenderer | None = None,
    on_ready: OnReady | None = None,
    stop: asyncio.Event,
    grace_seconds: float = 5.0,
) -> None:
    """Serve ``engine`` until ``stop`` is set; requests in flight then get ``grace_seconds``.

    ``port`` 0 takes a free one; ``on_ready`` is told the real URL. The engine stays the caller's, who closes it.
    Raises ``ConfigError`` when the address cannot be listened on.
    """
    app = build_app(engine, model_name=model_name, renderer=renderer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=grace_seconds)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", setting="--host, --port"
            ) from error
        url = url_of(host, runner.addresses[0][1])
        logger.info("engine of %s at %s", model_name, url)
        if host not in LOOPBACK:
            logger.warning("listening on %s: whoever reaches this port can use the engine and change its weights", host)
        if on_ready is not None and inspect.isawaitable(told := on_ready(url)):
            await told
        await stop.wait()
    finally:
        await runner.cleanup()


def url_of(host: str, port: int) -> str:
    """Where others reach it; an engine that listens on every address is reached by this machine's name."""
    if host in EVERY_ADDRESS:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def build_app(engine: Engine, *, model_name: str, renderer: ChatRenderer | None = None) -> web.Application:
    routes = Routes(engine, model_name, renderer)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[errors_as_json])
    app.router.add_post("/generate", routes.generate)
    app.router.add_post("/update_weights", routes.update_weights)
    app.router.add_post("/pause", routes.pause)
    app.router.add_post("/resume", routes.resume)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/version", routes.version)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_post("/v1/chat/completions", routes.chat)
    return app


class Refused(Exception):
    """Ends a request with this status."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@web.middleware
async def errors_as_json(request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> web.StreamResponse:
    """Every failure has a status and a body ``{"error": {"type", "message"}}``."""
    try:
        if "Origin" in request.headers:
            raise Refused(403, wire.BAD_REQUEST, "web pages of other origins may not use the engine")
        return await handler(request)
    except wire.WireError as error:
        return error_answer(400, error.kind, str(error))
    except Refused as error:
        return error_answer(error.status, error.kind, str(error))
    except ContextTooLong as error:
        return error_answer(400, wire.CONTEXT_TOO_LONG, str(error))
    except (RenderError, RequestRefused) as error:
        return error_answer(400, wire.BAD_REQUEST, str(error))
    except WeightsError as error:
        return error_answer(409, wire.WEIGHTS_REFUSED, str(error))
    except EngineError as error:
        return error_answer(500, wire.ENGINE_ERROR, str(error))
    except web.HTTPException as error:
        return error_answer(error.status, wire.BAD_REQUEST, f"{request.method} {request.path}: {error.reason}")


def error_answer(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"error": {"type": kind, "message": message}}, status=status)


class Routes:
    def __init__(self, engine: Engine, model_name: str, renderer: ChatRenderer | None) -> None:
        self._engine = engine
        self._model_name = model_name
        self._renderer = renderer
        self._created = int(time.time())
        self._updating = asyncio.Lock()

    async def generate(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        deadline_seconds, token_ids, sampling = wire.all_of(
            lambda: wire.positive_from(body, "deadline_seconds"),
            lambda: wire.token_ids_from(body.get("token_ids")),
            lambda: wire.sampling_from(body.get("sampling")),
        )
        completion = await self._within(deadline_seconds, token_ids, sampling, str(body.get("session") or ""))
        return web.json_response(wire.completion_as_json(completion))

    async def _within(
        self, deadline_seconds: float, prompt_ids: list[int], sampling: Sampling, session: str
    ) -> Completion:
        """The engine's answer; 504 at the deadline, whether the engine keeps it or not."""
        begun = time.monotonic()
        try:
            async with asyncio.timeout(deadline_seconds + DEADLINE_SLACK_SECONDS):
                return await self._engine.generate(
                    prompt_ids, sampling=sampling, session=session, deadline_seconds=deadline_seconds
                )
        except (ContextTooLong, RequestRefused):
            raise
        except (TimeoutError, EngineError) as error:
            if isinstance(error, EngineError) and time.monotonic() - begun < deadline_seconds:
                raise
            message = str(error) or f"no completion within the deadline of {deadline_seconds:g} s"
            raise Refused(504, wire.DEADLINE, message) from error

    async def update_weights(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        version, path, canary = wire.all_of(
            lambda: wire.version_from(body.get("version")),
            lambda: wire.path_from(body.get("path")),
            lambda: wire.canary_from(body.get("canary")),
        )
        source = WeightSource(path=path, canary=canary)
        # A client that goes away must not leave an engine with half of its weights changed.
        confirmation = await asyncio.shield(asyncio.ensure_future(self._update(version, source)))
        return web.json_response(wire.confirmation_as_json(confirmation))

    async def _update(self, version: int, source: WeightSource) -> Confirmation:
        async with self._updating:
            return await self._engine.update_weights(version, source)

    async def pause(self, request: web.Request) -> web.Response:
        await self._engine.pause()
        return web.json_response({"paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        return web.json_response({"paused": False})

    async def health(self, request: web.Request) -> web.Response:
        """200 as long as the engine answers; ``ready`` says whether it would generate now."""
        try:
            return web.json_response(wire.health_as_json(await self._engine.health()))
        except EngineError as error:
            raise Refused(503, wire.UNAVAILABLE, str(error)) from error

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": (await self._engine.health()).version, "model": self._model_name})

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": self._model_name, "object": "model", "created": self._created, "owned_by": "agentrl"}
        return web.json_response({"object": "list", "data": [model]})

    async def chat(self, request: web.Request) -> web.Response:
        if self._renderer is None:
            raise Refused(501, wire.UNAVAILABLE, "this engine has no chat template; use POST /generate")
        wanted = chat_request(await body_of(request), stop_token_ids=self._renderer.stop_token_ids)
        if wanted.model not in ("", self._model_name):
            raise Refused(404, "model_not_found", f"no model {wanted.model!r} here; there is {self._model_name!r}")
        prompt_ids = list(self._renderer.open(wanted.messages, wanted.tools))
        completion = await self._within(CHAT_DEADLINE_SECONDS, prompt_ids, wanted.sampling, f"chat/{uuid.uuid4().hex}")
        reply = self._renderer.parse(
            completion.token_ids, finish_reason=completion.finish_reason, prompt_ids=prompt_ids
        )
        return web.json_response(chat_answer(completion, reply, model=self._model_name, num_prompt=len(prompt_ids)))


async def body_of(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise wire.WireError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise wire.WireError(f"the body is a {type(body).__name__}, expected an object")
    return body
