"""The functions of the package itself: those of a client that is made at the first use."""

from __future__ import annotations

import os
import threading
from functools import wraps
from typing import Callable, Optional, TypeVar

from typing_extensions import Concatenate, ParamSpec

from . import _local
from ._sync.client import Client

_P = ParamSpec("_P")
_T = TypeVar("_T")

_lock = threading.Lock()
_client: Optional[Client] = None


def _default() -> Client:
    global _client
    with _lock:
        if _client is None:
            _client = Client()
        return _client


def _by_default(method: Callable[Concatenate[Client, _P], _T]) -> Callable[_P, _T]:
    @wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return method(_default(), *args, **kwargs)

    return call


run = _by_default(Client.run)
stream = _by_default(Client.stream)
run_batch = _by_default(Client.run_batch)
test = _by_default(Client.test)
evolve = _by_default(Client.evolve)


def stop_server() -> None:
    """Ends the server that this process has started, if it has: else that happens when the process ends."""
    _forget()
    _local.server.stop()


def _forget() -> None:
    # Connections belong to one process, and a lock that another thread held at the fork is held for ever.
    global _client, _lock
    _client, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
