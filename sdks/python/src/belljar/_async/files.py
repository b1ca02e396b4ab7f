"""Files of a sandbox. Paths are resolved inside; a relative one is below /workspace."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import IO, AsyncIterator, Iterator, List, Literal, Optional, Union, overload

from .. import _read, _retry, _tree, _wire
from ..errors import NotFoundError
from ..models import FileEvent, FileInfo
from ._transport import AsyncTransport
from .client import pieces_of

_LONGEST_S = 24 * 3600.0

Local = Union[str, "os.PathLike[str]"]


class AsyncFiles:
    """``sandbox.files``."""

    def __init__(self, transport: AsyncTransport, base: str) -> None:
        self._transport = transport
        self._base = base

    @overload
    async def read(self, path: str, format: Literal["text"] = ..., *, offset: int = ..., length: Optional[int] = ...) -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"], *, offset: int = ..., length: Optional[int] = ...) -> bytes: ...

    async def read(
        self, path: str, format: Literal["text", "bytes"] = "text", *, offset: int = 0, length: Optional[int] = None
    ) -> Union[str, bytes]:
        """The contents of a file, or ``length`` bytes from ``offset`` on. Text must be UTF-8."""
        query = _wire.query(offset=offset or None, length=length)
        found = await self._transport.read(_retry.Call("GET", self._at("files", path, query)))
        return found.decode("utf-8") if format == "text" else found

    async def write(
        self, path: str, data: Union[str, bytes, IO[bytes]], *, mode: Optional[int] = None, append: bool = False
    ) -> None:
        """Puts a whole file in its place: nobody ever sees half of it. Missing directories are made."""
        body = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else pieces_of(data)
        query = _wire.query(mode=mode, append=append)
        await self._transport.read(_retry.Call("PUT", self._at("files", path, query)), body)

    async def list(self, path: str = ".") -> List[FileInfo]:
        """What is in a directory, by name."""
        found = await self._transport.items(self._at("files", path, "?list=true"), "entries")
        return [_read.file_info(one) for one in found]

    async def info(self, path: str) -> FileInfo:
        """What a path is."""
        return _read.file_info(await self._transport.json(_retry.Call("GET", self._at("files", path, "?stat=true"))))

    async def exists(self, path: str) -> bool:
        try:
            await self.info(path)
        except NotFoundError:
            await self._transport.json(_retry.Call("GET", self._base))  # of a sandbox that is gone this is no answer
            return False
        return True

    async def make_dir(self, path: str) -> None:
        """A directory, with those above it; one that is there already is fine."""
        await self._transport.read(_retry.Call("POST", self._at("files", path, "?make=directory")))

    async def rename(self, path: str, to: str, *, replace: bool = False) -> None:
        query = _wire.query(move_to=to if to.startswith("/") else f"/workspace/{to}", replace=replace)
        await self._transport.read(_retry.Call("POST", self._at("files", path, query)))

    async def set_mode(self, path: str, mode: int) -> None:
        """Permission bits, such as ``0o755``."""
        await self._transport.read(_retry.Call("POST", self._at("files", path, _wire.query(mode=mode))))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """A file, a link or an empty directory; a tree only when told so."""
        await self._transport.read(_retry.Call("DELETE", self._at("files", path, _wire.query(recursive=recursive))))

    async def upload(self, local: Local, path: str) -> None:
        """Copies a file of this machine to ``path``, or the contents of a directory below it."""
        if os.path.isdir(local):
            with _packed(local) as archive:
                await self._transport.read(_retry.Call("PUT", self._at("tar", path), patience=600.0), pieces_of(archive))
            return
        with open(local, "rb") as file:
            await self.write(path, file, mode=0o755 if os.access(local, os.X_OK) else None)

    async def download(self, path: str, local: Local) -> None:
        """Copies a file of the sandbox to ``local``, or the files of a directory below it.

        Only regular files and directories are made, never a link: what is inside is not to be trusted.
        """
        if (await self.info(path)).is_dir:
            with tempfile.TemporaryFile() as archive:
                await self._save("tar", path, archive)
                archive.seek(0)
                _tree.unpack(archive, local)
            return
        with _tree.replaced(local) as file:
            await self._save("files", path, file)

    async def watch(self, path: str = ".", *, recursive: bool = False) -> AsyncIterator[FileEvent]:
        """What changes below a path, as it changes, until the iteration is left.

        Who watches is bound by the sandbox's own filter, which refuses watches unless it was made with
        ``options={"allow_syscalls": ["inotify_init1", "inotify_add_watch", "inotify_rm_watch"]}``.
        """
        query = _wire.query(recursive=recursive)
        call = _retry.Call("GET", self._at("watch", path, query), None, _retry.NDJSON, _LONGEST_S)
        async with self._transport.lines(call) as lines:
            async for line in lines:
                yield _read.file_event(line)

    async def _save(self, what: str, path: str, file: IO[bytes]) -> None:
        async with self._transport.pieces(_retry.Call("GET", self._at(what, path), patience=600.0)) as pieces:
            async for piece in pieces:
                file.write(piece)

    def _at(self, what: str, path: str, query: str = "") -> str:
        return f"{self._base}/{what}/{_wire.inside(path)}{query}"


@contextmanager
def _packed(local: Local) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as archive:
        _tree.pack(local, archive)
        archive.seek(0)
        yield archive
