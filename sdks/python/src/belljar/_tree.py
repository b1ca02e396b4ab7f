"""Trees of files of this machine: packed for a sandbox, and unpacked from one without trusting what it sends."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Iterator, Union

from .errors import BelljarError

Local = Union[str, "os.PathLike[str]"]


def pack(local: Local, archive: IO[bytes]) -> None:
    """Everything below a directory, links as links."""
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for entry in sorted(os.scandir(local), key=lambda one: one.name):
            tar.add(entry.path, arcname=entry.name, filter=_plain)


def _plain(member: tarfile.TarInfo) -> Union[tarfile.TarInfo, None]:
    # Whose they are here means nothing there, and of other kinds nothing is taken.
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isreg() or member.isdir() or member.issym() else None


def unpack(archive: IO[bytes], local: Local) -> None:
    """Regular files and directories only, below ``local``; the archive's own first name is left out."""
    root = Path(local)
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        for member in tar:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if ".." in parts or member.name.startswith("/"):
                raise BelljarError(f"the sandbox sent a name that leads out: {member.name!r}")
            place = root.joinpath(*parts[1:])
            if member.isdir():
                _directory(root, place)
            elif member.isreg():
                _directory(root, place.parent)
                source = tar.extractfile(member)
                if source is not None:
                    with replaced(place) as file:
                        shutil.copyfileobj(source, file)
                    if member.mode & 0o100:
                        os.chmod(place, os.stat(place).st_mode | 0o111)


def _directory(root: Path, place: Path) -> None:
    """Directories one by one, so that none of them is a link that leads elsewhere."""
    here = root
    for part in place.relative_to(root).parts:
        here = here / part
        if here.is_symlink():
            raise BelljarError(f"{here} is a link where a directory should be; nothing is written through it")
        here.mkdir(exist_ok=True)


@contextmanager
def replaced(local: Local) -> Iterator[IO[bytes]]:
    """A new file that takes its place when it is whole; a link there is replaced, never written through."""
    place = Path(local)
    made = tempfile.NamedTemporaryFile(dir=str(place.parent), prefix=f".{place.name}.", delete=False)
    try:
        with made:
            yield made
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(made.name, 0o666 & ~umask)
        os.replace(made.name, place)
    except BaseException:
        os.unlink(made.name)
        raise
