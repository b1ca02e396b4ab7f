"""Which server is spoken to: the one that was named, the one of this user, or one that is started for it."""

from __future__ import annotations

import os
import shutil
import stat
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional
from urllib.parse import unquote, urlsplit

from .errors import ConnectionFailed, ServerNotFound

#: Where a server is: http://, https:// or unix:///path.
URL_VARIABLE = "BELLJAR_URL"
#: The key for a server that wants one.
KEY_VARIABLES = ("BELLJAR_API_KEY", "BELLJAR_TOKEN")
#: The program, if it is not the one beside this package or on PATH.
PROGRAM_VARIABLE = "BELLJAR_BIN"


@dataclass(frozen=True)
class Place:
    """Where requests go."""

    base_url: str
    socket: Optional[str]
    key: Optional[str]
    #: Nobody named it: if nothing listens there, a server may be started.
    may_start: bool


def place(url: Optional[str], api_key: Optional[str], env: Optional[Mapping[str, str]] = None) -> Place:
    """The place that is meant by the arguments, else by the environment, else the default one of this user."""
    env = os.environ if env is None else env
    key = api_key or next((env[name] for name in KEY_VARIABLES if env.get(name)), None)
    named = url or env.get(URL_VARIABLE)
    if not named:
        return Place("http://localhost", default_socket(env), None, may_start=True)
    parts = urlsplit(named)
    if parts.scheme == "unix" and not parts.netloc and parts.path:
        return Place("http://localhost", unquote(parts.path), None, may_start=False)
    if parts.scheme in ("http", "https") and parts.netloc and not parts.query and not parts.fragment:
        return Place(named.rstrip("/"), None, key, may_start=False)
    raise ValueError(f"url is {named!r}; it must be http://HOST:PORT, https://HOST or unix:///PATH")


def default_socket(env: Mapping[str, str]) -> str:
    """The same rule as that of `belljar serve`."""
    if env.get("BELLJAR_SOCKET"):
        return env["BELLJAR_SOCKET"]
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return os.path.join(runtime, "belljar", "belljar.sock")
    if os.geteuid() == 0:
        return "/run/belljar/belljar.sock"
    for name, rest in (("BELLJAR_STATE", ""), ("XDG_STATE_HOME", "belljar"), ("HOME", ".local/state/belljar")):
        if os.path.isabs(env.get(name, "")):
            return str(Path(env[name]) / rest / "belljar.sock")
    raise ServerNotFound("there is no place for a server's socket: set HOME, BELLJAR_SOCKET or BELLJAR_URL")


def check_owner(socket: str) -> None:
    """Code is not shown to a server of another user: whoever owns the socket reads what is sent to it."""
    try:
        found = os.stat(socket)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConnectionFailed(f"cannot look at {socket}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise ConnectionFailed(f"{socket} is no socket")
    if found.st_uid != os.geteuid():
        raise ConnectionFailed(
            f"the server at {socket} belongs to uid {found.st_uid}, and we are uid {os.geteuid()}; "
            f"nothing was sent to it. hint: name it with {URL_VARIABLE}=unix://{socket} if that is meant"
        )


def program(env: Optional[Mapping[str, str]] = None) -> str:
    """The `belljar` program: named by the environment, installed with this package, or on PATH."""
    env = os.environ if env is None else env
    named = env.get(PROGRAM_VARIABLE)
    if named:
        if os.access(named, os.X_OK):
            return named
        raise ServerNotFound(f"{PROGRAM_VARIABLE} is {named}, which cannot be executed")
    beside = os.path.join(sysconfig.get_path("scripts"), "belljar")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("belljar", path=env.get("PATH"))
    if found:
        return found
    raise ServerNotFound(
        f"no server listens, and there is no program to start one: looked at ${PROGRAM_VARIABLE}, {beside} and PATH. "
        f"hint: pip install belljar brings it; or name a server with {URL_VARIABLE}"
    )
