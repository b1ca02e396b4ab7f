"""A server of our own, for those who have none: started at the first use, ended with this process.

It is a child of ours with a shell as its guard: the guard waits on a pipe that only we hold, and tells the server to
end when the pipe closes, which happens however this process ends. Sandboxes that stay are not ended by that.
"""

from __future__ import annotations

import os
import socket as sockets
import subprocess
import tempfile
import threading
import time
from typing import IO, Optional

from . import _find
from .errors import ServerNotFound

#: How long a server may take to listen, on a loaded machine too.
READY_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.01

# $$ becomes the server by exec. The guard ends it only while that is still its parent: a number may be given again.
_GUARDED = """
exec 3<&0 </dev/null
{ read -r _ <&3; read -r _ _ _ parent _ </proc/self/stat; [ "$parent" = $$ ] && kill -TERM $$; } 2>/dev/null &
exec "$@" 3<&-
"""


class LocalServer:
    """The server of this process, if it has started one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._said: Optional[IO[bytes]] = None

    def ensure(self, socket: str) -> None:
        """Returns when somebody listens at the socket."""
        with self._lock:
            if listens(socket):
                return
            if self._child is None or self._child.poll() is not None:
                self._start(socket)
            self._wait(socket)

    def stop(self) -> None:
        """Ends the server that was started, if one was: what runs in it may end first."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            if child.stdin is not None:
                child.stdin.close()
            child.wait()

    def _start(self, socket: str) -> None:
        command = [_find.program(), "serve", "--listen", "none", "--socket", socket]
        self._said = tempfile.TemporaryFile()  # a pipe would have to be read for as long as the server lives
        self._child = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for us; we end the server when we end
        )

    def _wait(self, socket: str) -> None:
        child = self._child
        assert child is not None
        until = time.monotonic() + READY_WITHIN_S
        while not listens(socket):
            if child.poll() is not None:
                # Another process may have been quicker with the same socket; then that one serves us.
                if listens(socket):
                    return
                raise ServerNotFound(f"belljar serve ended with {child.returncode}: {self._words()}")
            if time.monotonic() > until:
                raise ServerNotFound(f"belljar serve does not listen at {socket} after {READY_WITHIN_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)

    def _words(self) -> str:
        if self._said is None:
            return "it said nothing"
        self._said.seek(0)
        return self._said.read(10_000).decode("utf-8", "replace").strip() or "it said nothing"


def listens(path: str) -> bool:
    """Whether somebody accepts connections there."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


#: One for the process, whatever the number of clients.
server = LocalServer()


def _forget() -> None:
    # A forked child uses the server as long as it is there, but it is not the child's to end or to wait for.
    global server
    server = LocalServer()


os.register_at_fork(after_in_child=_forget)
