"""Sending requests, for synchronous clients. Its twin is `_async/_transport.py`; all else is written once."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Union
from urllib.parse import quote

import httpx

from .. import _find, _local, _retry
from ..errors import ApiError, ConnectionFailed, StreamCut

Body = Union[bytes, Iterator[bytes]]


class Transport:
    """A connection pool to one server."""

    def __init__(self, place: _find.Place, *, max_retries: int, user_agent: str) -> None:
        self._place = place
        self._max_retries = max_retries
        headers = {"User-Agent": user_agent}
        if place.key:
            headers["Authorization"] = f"Bearer {place.key}"
        self._http = httpx.Client(
            base_url=place.base_url,
            headers=headers,
            transport=httpx.HTTPTransport(uds=place.socket) if place.socket else None,
            trust_env=place.socket is None,
            follow_redirects=False,
        )

    def close(self) -> None:
        self._http.close()

    def json(self, call: _retry.Call) -> Any:
        """The document that answers it."""
        return _retry.document(self.read(call))

    def items(self, path: str, name: str) -> List[Dict[str, Any]]:
        """The members of a list, over all of its pages."""
        found: List[Dict[str, Any]] = []
        asked = path
        while True:
            page = self.json(_retry.Call("GET", asked))
            found += page[name]
            cursor = page.get("next_cursor")
            if not cursor:
                return found
            asked = f"{path}{'&' if '?' in path else '?'}cursor={quote(str(cursor), safe='')}"

    def read(self, call: _retry.Call, body: Optional[Body] = None) -> bytes:
        with self._ending(call):
            attempt = 0
            while True:
                response = self._send(call, body)
                try:
                    found = response.read()
                    call.done = True
                    return found
                except httpx.TransportError as error:
                    if not call.keyed or attempt >= self._max_retries:
                        raise ConnectionFailed(f"the server hung up: {error}") from error
                finally:
                    response.close()
                time.sleep(_retry.backoff(attempt))
                attempt += 1

    @contextmanager
    def pieces(self, call: _retry.Call) -> Iterator[Iterator[bytes]]:
        """The answer's bytes as they come. Leaving it closes the connection."""
        response = self._send(call, None)
        try:
            yield _pieces(response)
        finally:
            response.close()

    @contextmanager
    def lines(self, call: _retry.Call) -> Iterator[Iterator[Dict[str, Any]]]:
        """The answer as lines of JSON. Leaving it before its last line ends what was asked for."""
        with self._ending(call):
            held = [self._send(call, None)]
            try:
                yield self._lines(call, held)
            finally:
                held[-1].close()

    def _lines(self, call: _retry.Call, held: List[httpx.Response]) -> Iterator[Dict[str, Any]]:
        """One that breaks off is asked for again by its key: the same lines come, and those that were told are passed over."""
        told = attempt = 0
        while True:
            lines, here = _retry.Lines(), 0
            try:
                for piece in _pieces(held[-1]):
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
            held[-1].close()
            time.sleep(_retry.backoff(attempt))
            attempt += 1
            held.append(self._send(call, None))

    @contextmanager
    def _ending(self, call: _retry.Call) -> Iterator[None]:
        """Whoever leaves before the end has no more use for what was begun, which with a key would go on."""
        try:
            yield
        finally:
            if call.keyed and call.sent and not call.done:
                self._end(call)

    def _end(self, call: _retry.Call) -> None:
        for _ in range(_retry.END_TRIES):
            try:
                self._check_owner()
                response = self._http.delete(call.ending, timeout=_retry.END_WITHIN_S)
            except (httpx.HTTPError, ConnectionFailed):
                return  # a server that cannot be told has other worries
            if response.status_code != 404 or call.begun:
                return
            # It may be on its way still.
            time.sleep(_retry.END_PAUSE_S)

    def _send(self, call: _retry.Call, body: Optional[Body]) -> httpx.Response:
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
                response = self._http.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                # Nothing was sent, so anything may be sent again.
                absent = self._place.may_start and not started
                if attempt >= self._max_retries and not absent:
                    raise ConnectionFailed(f"cannot reach {self._where()}: {error}") from error
                if not absent:
                    time.sleep(_retry.backoff(attempt))
            except httpx.TransportError as error:
                if attempt >= self._max_retries or not call.repeatable or body is not None:
                    raise ConnectionFailed(f"{self._where()} hung up: {error}") from error
                time.sleep(_retry.backoff(attempt))
            else:
                if response.status_code < 400:
                    call.begun = True
                    return response
                problem = _problem(response)
                wait = _retry.pause(attempt, self._max_retries, problem, response.headers)
                if wait is None or not (body is None or isinstance(body, bytes)):
                    call.done = True
                    raise problem
                time.sleep(wait)
            if absent and self._place.socket:
                _local.server.ensure(self._place.socket)
                started = True
            else:
                attempt += 1

    def _check_owner(self) -> None:
        if self._place.may_start and self._place.socket:
            _find.check_owner(self._place.socket)

    def _where(self) -> str:
        return self._place.socket or self._place.base_url


def _problem(response: httpx.Response) -> Any:
    try:
        body = response.read()
    except httpx.TransportError:
        body = b""
    finally:
        response.close()
    return _retry.problem(response.status_code, body, response.headers)


def _pieces(response: httpx.Response) -> Iterator[bytes]:
    try:
        for piece in response.iter_raw():
            yield piece
    except httpx.TransportError as error:
        raise StreamCut(f"the stream was cut: {error}") from error


def _heard(call: _retry.Call, lines: _retry.Lines, piece: bytes) -> List[Dict[str, Any]]:
    try:
        return lines.feed(piece)
    except ApiError:
        call.done = True  # what the server tells so has ended
        raise


def call_back(callback: Optional[Callable[[Any], Any]], value: Any) -> None:
    """Calls what the user gave."""
    if callback is not None:
        callback(value)
