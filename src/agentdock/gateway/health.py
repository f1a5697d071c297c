"""Health and metrics: alive, ready with reasons, and the dock's series in the text form of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from agentdock.dock import Dock
from agentdock.gateway.access import Access
from agentdock.gateway.answers import json_answer
from agentdock.stats import Metric, Sample


class HealthRoutes:
    def __init__(self, dock: Dock, access: Access) -> None:
        self._dock = dock
        self._access = access

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/livez", self.livez),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
        ]

    async def livez(self, request: web.Request) -> web.Response:
        return json_answer({"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        """503 while a server is not up. Reasons may quote what a server printed: only who has the token reads them."""
        reasons = self._dock.unready()
        if not reasons:
            return json_answer({"status": "ready"})
        if not self._access.knows(request):
            reasons = tuple(": ".join(reason.split(": ")[:2]) for reason in reasons)
        return json_answer({"status": "not ready", "reasons": reasons}, status=503)

    async def metrics(self, request: web.Request) -> web.Response:
        text = prometheus_text(self._dock.metrics())
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def prometheus_text(metrics: Iterable[Metric]) -> str:
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [_line(metric.name, sample) for sample in metric.samples]
    return "\n".join(lines) + "\n"


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sample.labels.items())
    name += sample.suffix + (f"{{{labels}}}" if labels else "")
    return f"{name} {float(sample.value)!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
