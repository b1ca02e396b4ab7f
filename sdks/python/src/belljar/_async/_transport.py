"""Sending requests, for asynchronous clients. Its twin is `_sync/_transport.py`; all else is written once."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Callable, Dict, List, Optional, Union
from urllib.parse import quote

import anyio
import anyio.to_thread
import httpx

from .. import _find, _local, _retry
from ..errors import ApiError, ConnectionFailed, StreamCut

Body = Union[bytes, AsyncIterator[bytes]]


class AsyncTransport:
    """A connection pool to one server."""

    def __init__(self, place: _find.Place, *, max_retries: int, user_agent: str) -> None:
        self._place = place
        self._max_retries = max_retries
        headers = {"User-Agent": user_agent}
        if place.key:
            headers["Authorization"] = f"Bearer {place.key}"
        self._http = httpx.AsyncClient(
            base_url=place.base_url,
            headers=headers,
            transport=httpx.AsyncHTTPTransport(uds=place.socket) if place.socket else None,
            trust_env=place.socket is None,
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def json(self, call: _retry.Call) -> Any:
        """The document that answers it."""
        return _retry.document(await self.read(call))

    async def items(self, path: str, name: str) -> List[Dict[str, Any]]:
        """The members of a list, over all of its pages."""
        found: List[Dict[str, Any]] = []
        asked = path
        while True:
            page = await self.json(_retry.Call("GET", asked))
            found += page[name]
            cursor = page.get("next_cursor")
            if not cursor:
                return found
            asked = f"{path}{'&' if '?' in path else '?'}cursor={quote(str(cursor), safe='')}"

    async def read(self, call: _retry.Call, body: Optional[Body] = None) -> bytes:
        async with self._ending(call):
            attempt = 0
            while True:
                response = await self._send(call, body)
                try:
                    found = await response.aread()
                    call.done = True
                    return found
                except httpx.TransportError as error:
                    if not call.keyed or attempt >= self._max_retries:
                        raise ConnectionFailed(f"the server hung up: {error}") from error
                finally:
                    await response.aclose()
                await anyio.sleep(_retry.backoff(attempt))
                attempt += 1

    @asynccontextmanager
    async def pieces(self, call: _retry.Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer's bytes as they come. Leaving it closes the connection."""
        response = await self._send(call, None)
        try:
            yield _pieces(response)
        finally:
            await response.aclose()

    @asynccontextmanager
    async def lines(self, call: _retry.Call) -> AsyncIterator[AsyncIterator[Dict[str, Any]]]:
        """The answer as lines of JSON. Leaving it before its last line ends what was asked for."""
        async with self._ending(call):
            held = [await self._send(call, None)]
            try:
                yield self._lines(call, held)
            finally:
                await held[-1].aclose()

    async def _lines(self, call: _retry.Call, held: List[httpx.Response]) -> AsyncIterator[Dict[str, Any]]:
        """One that breaks off is asked for again by its key: the same lines come, and those that were told are passed over."""
        told = attempt = 0
        while True:
            lines, here = _retry.Lines(), 0
            try:
                async for piece in _pieces(held[-1]):
                    for line in _heard(call, lines, piece):
                        here += 1
                        if here > told:
                            told = here
                            call.hear(line)
                            yield line
                call.done = True
                return
            except StreamCut:
                if not call.keyed or attempt >= self._max_retries:
                    raise
            await held[-1].aclose()
            await anyio.sleep(_retry.backoff(attempt))
            attempt += 1
            held.append(await self._send(call, None))

    @asynccontextmanager
    async def _ending(self, call: _retry.Call) -> AsyncIterator[None]:
        """Whoever leaves before the end has no more use for what was begun, which with a key would go on."""
        try:
            yield
        finally:
            if call.keyed and call.sent and not call.done:
                # A task that was cancelled has time for this one thing.
                with anyio.move_on_after(_retry.END_WITHIN_S, shield=True):
                    await self._end(call)

    async def _end(self, call: _retry.Call) -> None:
        for _ in range(_retry.END_TRIES):
            try:
                self._check_owner()
                response = await self._http.delete(call.ending, timeout=_retry.END_WITHIN_S)
            except (httpx.HTTPError, ConnectionFailed):
                return  # a server that cannot be told has other worries
            if response.status_code != 404 or call.begun:
                return
            # It may be on its way still.
            await anyio.sleep(_retry.END_PAUSE_S)

    async def _send(self, call: _retry.Call, body: Optional[Body]) -> httpx.Response:
        self._check_owner()
        attempt, started = 0, False
        while True:
            request = self._http.build_request(
                call.method,
                call.path,
                json=call.json,
                content=body,
                headers=call.headers,
                timeout=httpx.Timeout(call.patience, connect=10.0),
            )
            absent = False
            call.sent = True
            try:
                response = await self._http.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                # Nothing was sent, so anything may be sent again.
                absent = self._place.may_start and not started
                if attempt >= self._max_retries and not absent:
                    raise ConnectionFailed(f"cannot reach {self._where()}: {error}") from error
                if not absent:
                    await anyio.sleep(_retry.backoff(attempt))
            except httpx.TransportError as error:
                if attempt >= self._max_retries or not call.repeatable or body is not None:
                    raise ConnectionFailed(f"{self._where()} hung up: {error}") from error
                await anyio.sleep(_retry.backoff(attempt))
            else:
                if response.status_code < 400:
                    call.begun = True
                    return response
                problem = await _problem(response)
                wait = _retry.pause(attempt, self._max_retries, problem, response.headers)
                if wait is None or not (body is None or isinstance(body, bytes)):
                    call.done = True
                    raise problem
                await anyio.sleep(wait)
            if absent and self._place.socket:
                await anyio.to_thread.run_sync(_local.server.ensure, self._place.socket)
                started = True
            else:
                attempt += 1

    def _check_owner(self) -> None:
        if self._place.may_start and self._place.socket:
            _find.check_owner(self._place.socket)

    def _where(self) -> str:
        return self._place.socket or self._place.base_url


async def _problem(response: httpx.Response) -> Any:
    try:
        body = await response.aread()
    except httpx.TransportError:
        body = b""
    finally:
        await response.aclose()
    return _retry.problem(response.status_code, body, response.headers)


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.TransportError as error:
        raise StreamCut(f"the stream was cut: {error}") from error


def _heard(call: _retry.Call, lines: _retry.Lines, piece: bytes) -> List[Dict[str, Any]]:
    try:
        return lines.feed(piece)
    except ApiError:
        call.done = True  # what the server tells so has ended
        raise


async def call_back(callback: Optional[Callable[[Any], Any]], value: Any) -> None:
    """Calls what the user gave, which may be asynchronous too."""
    if callback is not None:
        answer = callback(value)
        if inspect.isawaitable(answer):
            await answer
