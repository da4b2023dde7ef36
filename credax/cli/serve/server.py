"""The server: reads requests within its limits, and answers them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from credax.cli.serve import formats
from credax.cli.serve.batching import Batcher
from credax.cli.serve.description import describe
from credax.cli.serve.formats import ARROW, JSON
from credax.cli.serve.limits import Limits, Refused
from credax.cli.serve.metrics import Metrics
from credax.tables.runs import Run

RETRY_AFTER = "1"
"""The seconds after which a request that was refused because of many others may be tried again."""


def serve(run: Run, host: str, port: int, limits: Limits, ready: Any = None) -> None:
    """Answer requests until the process is told to end; then answer those that have arrived, and return.

    Args:
      run: the run that predicts.
      host: the address to listen on.
      port: the port; 0 for any that is free.
      limits: what is refused.
      ready: called with the address when requests can be sent.
    """
    config = uvicorn.Config(
        make_app(run, limits),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(limits.timeout) + 1,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=config.backlog) as listening:
        if ready is not None:
            ready("{}:{}".format(*listening.getsockname()[:2]))
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def make_app(run: Run, limits: Limits = Limits()) -> Starlette:
    """The application; every program that it needs is compiled before it is returned."""
    predicted = run.predict_inputs(np.zeros((1, len(run.preprocessor.features))))
    endpoints = Endpoints(run, limits, describe(run, limits, predicted))
    return Starlette(
        routes=[
            Route("/predict", endpoints.predict, methods=["POST"]),
            Route("/health", endpoints.health),
            Route("/metrics", endpoints.show_metrics),
            Route("/openapi.json", endpoints.openapi),
        ],
        lifespan=endpoints.lifespan,
    )


class Endpoints:
    """What each path does."""

    def __init__(self, run: Run, limits: Limits, description: dict[str, Any]):
        self._run, self._limits, self._description = run, limits, description
        self._metrics = Metrics()
        self._batcher: Batcher

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Start the batches with the server, and end them with it."""
        self._batcher = Batcher(self._run, self._limits, self._metrics.batch)
        try:
            yield
        finally:
            await self._batcher.close()

    async def health(self, _: Request) -> Response:
        """``GET /health``."""
        return JSONResponse({"status": "ok", "target": self._run.preprocessor.target})

    async def show_metrics(self, _: Request) -> Response:
        """``GET /metrics``."""
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        """``GET /openapi.json``."""
        return JSONResponse(self._description)

    async def predict(self, request: Request) -> Response:
        """``POST /predict``."""
        begin = time.perf_counter()
        metrics = self._metrics
        metrics.in_flight += 1
        try:
            response = await self._answer(request)
        except Refused as refused:
            await self._discard(request)
            headers = {"Retry-After": RETRY_AFTER} if refused.status == 429 else None
            response = JSONResponse({"error": refused.message}, refused.status, headers)
        except ClientDisconnect:
            response = Response(
                status_code=499
            )  # nobody reads it; the number is the usual one in logs
        finally:
            metrics.in_flight -= 1
        metrics.request(response.status_code, time.perf_counter() - begin)
        return response

    async def _answer(self, request: Request) -> Response:
        if self._metrics.in_flight > self._limits.max_queue:
            raise Refused(
                429, f"More than {self._limits.max_queue} requests wait. Try again later."
            )
        deadline = asyncio.get_running_loop().time() + self._limits.timeout
        kind, level = _kind(request), self._level(request)
        try:
            async with asyncio.timeout_at(deadline):
                content = await self._body(request)
        except TimeoutError:
            raise Refused(408, f"The body did not arrive in {self._limits.timeout:g} s.") from None
        try:
            async with asyncio.timeout_at(deadline):
                table = await asyncio.to_thread(
                    formats.read_rows, content, kind, self._run.preprocessor, self._limits.max_rows
                )
                columns, notes = await self._batcher.predict(table, level)
                answer = await asyncio.to_thread(formats.write, columns, notes, kind)
        except TimeoutError:
            raise Refused(503, f"There was no answer within {self._limits.timeout:g} s.") from None
        return Response(answer, media_type=kind)

    def _level(self, request: Request) -> float:
        text = request.query_params.get("level", "0.9")
        try:
            level = float(text)
        except ValueError:
            level = 0.0
        if not 0 < level < 1:
            raise Refused(422, f"level must be between 0 and 1, both excluded; got {text!r}.")
        return level

    async def _body(self, request: Request) -> bytes:
        """The body, of which no more is kept than is allowed."""
        most = self._limits.max_bytes
        too_long = Refused(413, f"A request may have at most {most} bytes. Send several requests.")
        given = request.headers.get("content-length", "")
        if given.isdecimal() and int(given) > most:
            raise too_long
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > most:
                raise too_long
        return bytes(content)

    async def _discard(self, request: Request) -> None:
        """Read the rest of a body that is not needed: a client that is still sending would miss the answer."""
        left = self._limits.max_bytes
        # Starlette raises a RuntimeError if there is no rest.
        with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
            async with asyncio.timeout(self._limits.timeout):
                async for chunk in request.stream():
                    left -= len(chunk)
                    if left < 0:
                        break


def _kind(request: Request) -> str:
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind not in (JSON, ARROW):
        raise Refused(415, f"The content type must be {JSON} or {ARROW}; got {kind!r}.")
    return kind
