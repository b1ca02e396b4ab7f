# Made by tools/make_sync.py out of src/belljar/_async/sandbox.py. Change that, not this.
"""Sandboxes that stay: files, programs side by side, code that keeps its variables, and a way back."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Type

from .. import _read, _retry, _wire
from ..errors import NotFoundError, StreamCut
from ..models import CodeResult, Diff, Output, RichResult, SandboxInfo, SnapshotInfo
from ._transport import call_back
from .client import Client
from .commands import Commands
from .contexts import Contexts
from .files import Files
from .streams import CodeStream

_ALL = "/v1/sandboxes"
#: Code has the sandbox's own time limit unless a call says otherwise; this is waited for at most.
_LONGEST_S = 24 * 3600.0

OnText = Callable[[str], Any]


class Sandbox:
    """A sandbox with a name. Make one with :meth:`create`, or find one with :meth:`connect`.

    Under ``with``, a sandbox that was created is removed at the end; one that was connected to is left as it is.
    """

    def __init__(self, client: Client, info: SandboxInfo, *, owns_client: bool, removes: bool) -> None:
        self._client = client
        self._transport = client._transport
        self._owns_client = owns_client
        self._removes = removes
        #: What was known of it when it was made or last asked for; see :meth:`info`.
        self.last_info = info
        self.name = info.name
        self.id = info.id
        #: Programs.
        self.commands = Commands(self._transport, self._path())
        #: Files.
        self.files = Files(self._transport, self._path())
        #: Interpreters that keep their variables.
        self.contexts = Contexts(self._transport, self._path())

    @classmethod
    def create(
        cls,
        name: Optional[str] = None,
        *,
        client: Optional[Client] = None,
        level: Optional[str] = None,
        timeout: Optional[float] = None,
        memory: Optional[_wire.Size] = None,
        disk: Optional[_wire.Size] = None,
        cpus: Optional[float] = None,
        processes: Optional[int] = None,
        limits: Optional[Mapping[str, int]] = None,
        env: Optional[Mapping[str, str]] = None,
        labels: Optional[Mapping[str, str]] = None,
        idle_timeout: Optional[float] = None,
        ttl: Optional[float] = None,
        undo: bool = False,
        options: Optional[Mapping[str, Any]] = None,
    ) -> Sandbox:
        """Makes a sandbox and starts it.

        ``timeout`` is the seconds of a command that names none; ``idle_timeout`` stops it when nothing ran for so long,
        ``ttl`` removes it, files and all. ``undo`` makes a point to go back to before each command. ``options`` are
        further fields of the request by their own names, such as ``workspace``.
        """
        request = _wire.given(
            name=name,
            level=level,
            limits=_wire.limits(timeout, None, memory, disk, cpus, processes, limits),
            env=None if env is None else dict(env),
            labels=None if labels is None else dict(labels),
            idle_ms=_wire.milliseconds("idle_timeout", idle_timeout),
            ttl_ms=_wire.milliseconds("ttl", ttl),
            undo=undo or None,
        )
        request.update(options or {})
        return cls._open(client, _retry.Call("POST", _ALL, request), removes=True)

    @classmethod
    def connect(cls, name: str, *, client: Optional[Client] = None) -> Sandbox:
        """A sandbox that is there already."""
        return cls._open(client, _retry.Call("GET", f"{_ALL}/{_wire.segment(name)}"), removes=False)

    @classmethod
    def _open(cls, client: Optional[Client], call: _retry.Call, *, removes: bool) -> Sandbox:
        own = client is None
        used = client if client is not None else Client()
        try:
            info = _read.sandbox_info(used._transport.json(call))
        except BaseException:
            if own:
                used.close()
            raise
        return cls(used, info, owns_client=own, removes=removes)

    @classmethod
    def list(
        cls,
        *,
        state: Optional[str] = None,
        label: Optional[str] = None,
        client: Optional[Client] = None,
    ) -> List[SandboxInfo]:
        """The sandboxes there are; ``label`` is ``name=value``."""
        used = client if client is not None else Client()
        try:
            found = used._transport.items(_ALL + _wire.query(state=state, label=label), "sandboxes")
            return [_read.sandbox_info(one) for one in found]
        finally:
            if client is None:
                used.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            if self._removes:
                self.remove()
        except NotFoundError:
            pass  # somebody else was quicker, or its time was over
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connections of this object. The sandbox stays."""
        if self._owns_client:
            self._client.close()

    def run_code(
        self,
        code: str,
        *,
        language: Optional[str] = None,
        context: Optional[str] = None,
        timeout: Optional[float] = None,
        env: Optional[Mapping[str, str]] = None,
        on_stdout: Optional[OnText] = None,
        on_stderr: Optional[OnText] = None,
        on_result: Optional[Callable[[RichResult], Any]] = None,
        check: bool = False,
    ) -> CodeResult:
        """Runs code in a context, which keeps its variables: each call finds what the last one left.

        ``language`` is ``python`` unless told, else ``bash`` or ``node``. An exception is a result with ``error``.
        """
        stream = self.stream_code(code, language=language, context=context, timeout=timeout, env=env)
        with stream as events:
            for event in events:
                if isinstance(event, Output):
                    call_back(on_stdout if event.stream == "stdout" else on_stderr, event.text)
                else:
                    call_back(on_result, event)
        if stream.result is None:
            raise StreamCut("the stream ended before the code did")
        return stream.result.check() if check else stream.result

    def stream_code(
        self,
        code: str,
        *,
        language: Optional[str] = None,
        context: Optional[str] = None,
        timeout: Optional[float] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> CodeStream:
        """The same as an iterator under ``with``. Leaving it early interrupts the code."""
        request = _wire.given(
            code=code,
            language=language,
            context=context,
            timeout_ms=_wire.milliseconds("timeout", timeout),
            env=None if env is None else dict(env),
        )
        call = _retry.Call("POST", self._path("/code"), request, _retry.NDJSON, _LONGEST_S)
        return CodeStream(self._transport.lines(call))

    def info(self) -> SandboxInfo:
        """What is known of it now."""
        return self._told(self._transport.json(_retry.Call("GET", self._path())))

    def start(self) -> SandboxInfo:
        return self._verb("start")

    def stop(self, *, grace: Optional[float] = None) -> SandboxInfo:
        """Ends what runs, politely first; its files stay."""
        return self._verb("stop", _wire.given(grace_ms=_wire.milliseconds("grace", grace)))

    def kill(self) -> SandboxInfo:
        """Ends what runs, at once; its files stay. To be rid of it altogether: :meth:`remove`."""
        return self._verb("kill")

    def pause(self) -> SandboxInfo:
        """Everything in it stands still until :meth:`resume`."""
        return self._verb("pause")

    def resume(self) -> SandboxInfo:
        return self._verb("resume")

    def remove(self) -> None:
        """Ends what runs and removes its files."""
        self._transport.read(_retry.Call("DELETE", self._path("?force=true")))

    def snapshot(self, tag: Optional[str] = None) -> SnapshotInfo:
        """Keeps a point to come back to. Without a tag it is called s1, s2, …"""
        call = _retry.Call("POST", self._path("/snapshots"), _wire.given(tag=tag))
        return _read.snapshot_info(self._transport.json(call))

    def snapshots(self) -> List[SnapshotInfo]:
        found = self._transport.items(self._path("/snapshots"), "snapshots")
        return [_read.snapshot_info(one) for one in found]

    def remove_snapshot(self, tag: str) -> None:
        self._transport.read(_retry.Call("DELETE", self._path(f"/snapshots/{_wire.segment(tag)}")))

    def rollback(self, tag: str) -> SandboxInfo:
        """Its files exactly as they were; what runs is ended."""
        return self._verb("rollback", {"tag": tag})

    def undo(self) -> SandboxInfo:
        """To before the last command that changed something; the sandbox must have been made with ``undo=True``."""
        return self._verb("undo")

    def redo(self) -> SandboxInfo:
        return self._verb("redo")

    def diff(self, since: Optional[str] = None, until: Optional[str] = None) -> Diff:
        """What changed between two points; without them, from the image to now."""
        query = _wire.query(**{"from": since, "to": until})
        return _read.diff(self._transport.json(_retry.Call("GET", self._path("/diff" + query))))

    def fork(self, count: int = 1) -> List[Sandbox]:
        """Further sandboxes with its files; none is copied. They are yours to remove."""
        made = self._transport.json(_retry.Call("POST", self._path("/fork"), {"count": count}))
        infos = [_read.sandbox_info(one) for one in made["sandboxes"]]
        return [Sandbox(self._client, one, owns_client=False, removes=True) for one in infos]

    def promote(self, name: str) -> SandboxInfo:
        """This fork takes the name, and the one that had it goes."""
        info = self._verb("promote", {"as": name})
        self._rename(info)
        return info

    def export(self, tag: Optional[str] = None) -> bytes:
        """All of it as one archive, for :meth:`import_archive`."""
        return self._transport.read(_retry.Call("GET", self._path("/export" + _wire.query(tag=tag)), patience=600.0))

    @classmethod
    def import_archive(
        cls, archive: bytes, name: Optional[str] = None, *, client: Optional[Client] = None
    ) -> Sandbox:
        """A sandbox out of an archive that :meth:`export` made."""
        own = client is None
        used = client if client is not None else Client()
        call = _retry.Call("POST", f"{_ALL}/import{_wire.query(name=name)}", patience=600.0)
        try:
            made = _retry.document(used._transport.read(call, archive))
        except BaseException:
            if own:
                used.close()
            raise
        return cls(used, _read.sandbox_info(made), owns_client=own, removes=True)

    def logs(self, *, tail: Optional[int] = None, follow: bool = False) -> Iterator[Output]:
        """What all its commands wrote, those that started first first."""
        call = _retry.Call(
            "GET", self._path("/logs" + _wire.query(tail=tail, follow=follow)), None, _retry.NDJSON, _LONGEST_S
        )
        with self._transport.lines(call) as lines:
            for line in lines:
                yield Output(line["stream"], _read.data_of(line))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _verb(self, verb: str, body: Optional[Dict[str, Any]] = None) -> SandboxInfo:
        return self._told(self._transport.json(_retry.Call("POST", self._path(f"/{verb}"), body or None)))

    def _told(self, raw: Mapping[str, Any]) -> SandboxInfo:
        self.last_info = _read.sandbox_info(raw)
        return self.last_info

    def _rename(self, info: SandboxInfo) -> None:
        self.name, self.id = info.name, info.id
        for part in (self.commands, self.files, self.contexts):
            part._base = self._path()

    def _path(self, rest: str = "") -> str:
        return f"{_ALL}/{_wire.segment(self.name)}{rest}"
