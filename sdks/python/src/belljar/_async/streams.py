"""What happens while something runs, as it happens."""

from __future__ import annotations

from types import TracebackType
from typing import Any, AsyncContextManager, AsyncIterator, Dict, Optional, Type, Union

from .. import _read
from .._retry import Kept
from ..errors import StreamCut
from ..models import CodeResult, CommandResult, Event, Output, Result, RichResult

Lines = AsyncContextManager[AsyncIterator[Dict[str, Any]]]


class AsyncStream:
    """Lines of the server under a context manager. Leaving it early ends what runs."""

    def __init__(self, lines: Lines) -> None:
        self._opening = lines
        self._lines: Optional[AsyncIterator[Dict[str, Any]]] = None

    async def _open(self) -> None:
        self._lines = await self._opening.__aenter__()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self._opening.__aexit__(kind, error, trace)

    async def _next(self) -> Dict[str, Any]:
        if self._lines is None:
            raise RuntimeError("a stream is used under `with`")
        try:
            return await self._lines.__anext__()
        except StopAsyncIteration:
            raise StreamCut("the stream ended before its last line") from None


class AsyncRunStream(AsyncStream):
    """The output and the events of a run; ``result`` is there when they have ended."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.result: Optional[Result] = None

    async def __aenter__(self) -> AsyncRunStream:
        await self._open()
        return self

    def __aiter__(self) -> AsyncIterator[Union[Output, Event]]:
        return self

    async def __anext__(self) -> Union[Output, Event]:
        while self.result is None:
            line = await self._next()
            if line["type"] in ("stdout", "stderr"):
                return Output(line["type"], _read.data_of(line))
            if line["type"] == "event":
                return _read.event(line)
            if line["type"] == "outcome":
                self.result = _read.result(line)
        raise StopAsyncIteration


class AsyncCommandStream(AsyncStream):
    """The output of a command; ``result`` is there when it has ended."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.id: Optional[str] = None
        self.result: Optional[CommandResult] = None
        self._kept = Kept()

    async def __aenter__(self) -> AsyncCommandStream:
        await self._open()
        return self

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while self.result is None:
            line = await self._next()
            if line["type"] == "output":
                piece = Output(line["stream"], _read.data_of(line))
                self._kept.add(piece.stream, piece.data)
                return piece
            if line["type"] == "started":
                self.id = str(line["id"])
            elif line["type"] == "gap":
                self._kept.lose(line["stream"])
            elif line["type"] == "ended":
                self.result = self._kept.result(line)
        raise StopAsyncIteration


class AsyncCodeStream(AsyncStream):
    """The output and the values of a piece of code; ``result`` is there when it has ended."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.result: Optional[CodeResult] = None

    async def __aenter__(self) -> AsyncCodeStream:
        await self._open()
        return self

    def __aiter__(self) -> AsyncIterator[Union[Output, RichResult]]:
        return self

    async def __anext__(self) -> Union[Output, RichResult]:
        while self.result is None:
            line = await self._next()
            if line["type"] == "output":
                return Output(line["stream"], _read.data_of(line))
            if line["type"] == "result":
                return _read.rich_result(line)
            if line["type"] == "ended":
                self.result = _read.code_result(line)
        raise StopAsyncIteration
