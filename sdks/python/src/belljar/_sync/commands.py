# Made by tools/make_sync.py out of src/belljar/_async/commands.py. Change that, not this.
"""Programs in a sandbox."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union, overload

from .. import _read, _retry, _wire
from ..errors import StreamCut
from ..models import CommandResult, ExecInfo
from ._transport import Transport, call_back
from .streams import CommandStream

_LONGEST_S = 24 * 3600.0

Words = Union[str, Sequence[str]]
OnText = Callable[[str], Any]


class Command:
    """A program that was started in the background, or found again by its id."""

    def __init__(self, transport: Transport, base: str, info: ExecInfo) -> None:
        self._transport = transport
        self._path = f"{base}/execs/{_wire.segment(info.id)}"
        self.id = info.id
        self.cmd = info.cmd

    def info(self) -> ExecInfo:
        return _read.exec_info(self._transport.json(_retry.Call("GET", self._path)))

    def stream(self, *, stdout_from: int = 0, stderr_from: int = 0) -> CommandStream:
        """Its output from these offsets on, and then what comes. Leaving it does not end the program."""
        query = _wire.query(stdout=stdout_from, stderr=stderr_from)
        call = _retry.Call("GET", f"{self._path}/events{query}", None, _retry.NDJSON, _LONGEST_S)
        return CommandStream(self._transport.lines(call))

    def wait(
        self, *, on_stdout: Optional[OnText] = None, on_stderr: Optional[OnText] = None, check: bool = False
    ) -> CommandResult:
        """Waits for its end; the result has its output from the beginning, as far as it is kept."""
        return _follow(self.stream(), on_stdout, on_stderr, check)

    def send_stdin(self, data: _wire.Data, *, close: bool = False) -> None:
        """Writes to its standard input, which must have been kept open (``keep_stdin=True``)."""
        body = data.encode() if isinstance(data, str) else data
        call = _retry.Call("POST", f"{self._path}/stdin{_wire.query(close=close)}")
        self._transport.read(call, body)

    def close_stdin(self) -> None:
        self.send_stdin(b"", close=True)

    def signal(self, signal: Union[int, str]) -> None:
        """Sends it a signal, such as ``TERM``; ``KILL`` takes all that it has started."""
        self._transport.read(_retry.Call("POST", f"{self._path}/signal", {"signal": str(signal)}))

    def kill(self) -> None:
        self.signal("KILL")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.cmd!r}>"


class Commands:
    """``sandbox.commands``."""

    def __init__(self, transport: Transport, base: str) -> None:
        self._transport = transport
        self._base = base

    @overload
    def run(
        self,
        cmd: Words,
        *,
        cwd: Optional[str] = ...,
        env: Optional[Mapping[str, str]] = ...,
        stdin: Optional[_wire.Data] = ...,
        timeout: Optional[float] = ...,
        on_stdout: Optional[OnText] = ...,
        on_stderr: Optional[OnText] = ...,
        check: bool = ...,
        background: Literal[False] = ...,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        cmd: Words,
        *,
        cwd: Optional[str] = ...,
        env: Optional[Mapping[str, str]] = ...,
        stdin: Optional[_wire.Data] = ...,
        timeout: Optional[float] = ...,
        keep_stdin: bool = ...,
        background: Literal[True],
    ) -> Command: ...

    def run(
        self,
        cmd: Words,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[_wire.Data] = None,
        timeout: Optional[float] = None,
        on_stdout: Optional[OnText] = None,
        on_stderr: Optional[OnText] = None,
        check: bool = False,
        keep_stdin: bool = False,
        background: bool = False,
    ) -> Union[CommandResult, Command]:
        """Runs a program: a list of words without a shell, or text as a script for bash.

        With ``background=True`` the answer is an :class:`Command` at once, and the program goes on. Otherwise it
        ends with this call.
        """
        if background:
            path, body = _request(cmd, cwd, env, stdin, timeout, keep_stdin)
            body["background"] = True
            made = self._transport.json(_retry.Call("POST", self._base + path, body))
            return Command(self._transport, self._base, _read.exec_info(made))
        stream = self.stream(cmd, cwd=cwd, env=env, stdin=stdin, timeout=timeout)
        return _follow(stream, on_stdout, on_stderr, check)

    def stream(
        self,
        cmd: Words,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[_wire.Data] = None,
        timeout: Optional[float] = None,
    ) -> CommandStream:
        """The same as an iterator of its output under ``with``. Leaving it early ends the program."""
        path, body = _request(cmd, cwd, env, stdin, timeout, False)
        call = _retry.Call("POST", self._base + path, body, _retry.NDJSON, _LONGEST_S)
        return CommandStream(self._transport.lines(call))

    def list(self) -> List[ExecInfo]:
        """What runs and what ran."""
        found = self._transport.items(f"{self._base}/execs", "execs")
        return [_read.exec_info(one) for one in found]

    def connect(self, id: str) -> Command:
        """A program that was started before, by its id."""
        found = self._transport.json(_retry.Call("GET", f"{self._base}/execs/{_wire.segment(id)}"))
        return Command(self._transport, self._base, _read.exec_info(found))


def _request(
    cmd: Words,
    cwd: Optional[str],
    env: Optional[Mapping[str, str]],
    stdin: Optional[_wire.Data],
    timeout: Optional[float],
    keep_stdin: bool,
) -> Tuple[str, Dict[str, Any]]:
    body = _wire.given(
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=None if stdin is None else _wire.data(stdin),
        timeout_ms=_wire.milliseconds("timeout", timeout),
        keep_stdin=keep_stdin or None,
    )
    if isinstance(cmd, str):
        body["script"] = cmd
        return "/shell", body
    body["cmd"] = _wire.words("cmd", cmd)
    return "/exec", body


def _follow(
    stream: CommandStream, on_stdout: Optional[OnText], on_stderr: Optional[OnText], check: bool
) -> CommandResult:
    with stream as pieces:
        for piece in pieces:
            call_back(on_stdout if piece.stream == "stdout" else on_stderr, piece.text)
    if stream.result is None:
        raise StreamCut("the stream ended before the command did")
    return stream.result.check() if check else stream.result
