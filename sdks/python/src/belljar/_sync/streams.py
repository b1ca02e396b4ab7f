# Made by tools/make_sync.py out of src/belljar/_async/streams.py. Change that, not this.
"""What happens while something runs, as it happens."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ContextManager, Dict, Iterator, Optional, Type, Union

from .. import _read
from .._retry import Kept
from ..errors import StreamCut
from ..models import CodeResult, CommandResult, Event, Output, Result, RichResult

Lines = ContextManager[Iterator[Dict[str, Any]]]


class Stream:
    """Lines of the server under a context manager. Leaving it early ends what runs."""

    def __init__(self, lines: Lines) -> None:
        self._opening = lines
        self._lines: Optional[Iterator[Dict[str, Any]]] = None

    def _open(self) -> None:
        self._lines = self._opening.__enter__()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._opening.__exit__(kind, error, trace)

    def _next(self) -> Dict[str, Any]:
        if self._lines is None:
            raise RuntimeError("a stream is used under `with`")
        try:
            return self._lines.__next__()
        except StopIteration:
            raise StreamCut("the stream ended before its last line") from None


class RunStream(Stream):
    """The output and the events of a run; ``result`` is there when they have ended."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.result: Optional[Result] = None

    def __enter__(self) -> RunStream:
        self._open()
        return self

    def __iter__(self) -> Iterator[Union[Output, Event]]:
        return self

    def __next__(self) -> Union[Output, Event]:
        while self.result is None:
            line = self._next()
            if line["type"] in ("stdout", "stderr"):
                return Output(line["type"], _read.data_of(line))
            if line["type"] == "event":
                return _read.event(line)
            if line["type"] == "outcome":
                self.result = _read.result(line)
        raise StopIteration


class CommandStream(Stream):
    """The output of a command; ``result`` is there when it has ended."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.id: Optional[str] = None
        self.result: Optional[CommandResult] = None
        self._kept = Kept()

    def __enter__(self) -> CommandStream:
        self._open()
        return self

    def __iter__(self) -> Iterator[Output]:
        return self

    def __next__(self) -> Output:
        while self.result is None:
            line = self._next()
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
        raise StopIteration


class CodeStream(Stream):
    """The output and the values of a piece of code; ``result`` is there when it has ended."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.result: Optional[CodeResult] = None

    def __enter__(self) -> CodeStream:
        self._open()
        return self

    def __iter__(self) -> Iterator[Union[Output, RichResult]]:
        return self

    def __next__(self) -> Union[Output, RichResult]:
        while self.result is None:
            line = self._next()
            if line["type"] == "output":
                return Output(line["stream"], _read.data_of(line))
            if line["type"] == "result":
                return _read.rich_result(line)
            if line["type"] == "ended":
                self.result = _read.code_result(line)
        raise StopIteration
