"""The functions of the package for asynchronous programs: ``await belljar.aio.run("print(6 * 7)")``.

Each call opens a client of its own. A program that makes many keeps an ``AsyncClient``.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Coroutine, TypeVar

from typing_extensions import Concatenate, ParamSpec

from ._async.client import AsyncClient

__all__ = ["evolve", "run", "run_batch", "test"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _by_itself(
    method: Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]],
) -> Callable[_P, Coroutine[Any, Any, _T]]:
    @wraps(method)
    async def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with AsyncClient() as client:
            return await method(client, *args, **kwargs)

    return call


run = _by_itself(AsyncClient.run)
run_batch = _by_itself(AsyncClient.run_batch)
test = _by_itself(AsyncClient.test)
evolve = _by_itself(AsyncClient.evolve)
