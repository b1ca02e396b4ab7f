"""Who leaves ends what they began; who lost the connection, or the server, finds what became of it, and nothing happens twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

import belljar
from belljar import AsyncClient, Client, Sandbox, _retry

from .conftest import DEADLINE_S, Server, start_server

#: Says that it is there, and would go on for longer than any test.
ENDLESS = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def label() -> Dict[str, str]:
    return {"test": uuid.uuid4().hex}


def recorded(client: Client, labels: Dict[str, str]) -> List[Dict[str, Any]]:
    told = client._transport.json(_retry.Call("GET", f"/v1/audit?label=test={labels['test']}"))
    return list(told["runs"])


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def ends_as_cancelled(client: Client, labels: Dict[str, str]) -> None:
    wait_until("it has ended", lambda: [run["state"] for run in recorded(client, labels)] == ["ended"])
    assert [run["verdict"] for run in recorded(client, labels)] == ["cancelled"]


def test_stream_that_is_left_ends_its_run(server: Server) -> None:
    labels = label()
    with Client(server.url) as client:
        with client.stream(ENDLESS, timeout=600, labels=labels) as events:
            next(iter(events))
            assert [run["state"] for run in recorded(client, labels)] == ["running"]
        ends_as_cancelled(client, labels)


def test_callback_that_raises_ends_its_run(server: Server) -> None:
    labels = label()

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with Client(server.url) as client:
        with pytest.raises(KeyboardInterrupt):
            client.run(ENDLESS, timeout=600, labels=labels, on_stdout=interrupt)
        ends_as_cancelled(client, labels)


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_task_that_is_cancelled_ends_its_run(server: Server, how: str) -> None:
    labels = label()

    async def main() -> None:
        up = asyncio.Event()
        async with AsyncClient(server.url) as client:
            running = client.run(ENDLESS, timeout=600, labels=labels, on_stdout=lambda text: up.set())
            task = asyncio.ensure_future(asyncio.wait_for(running, 1.0 if how == "timed out" else None))
            if how == "cancelled":
                await up.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(asyncio.TimeoutError):
                    await task

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    with Client(server.url) as client:
        ends_as_cancelled(client, labels)


def test_command_and_code_that_are_left_end(server: Server) -> None:
    with Client(server.url) as client, Sandbox.create(client=client) as sbx:
        with sbx.commands.stream("echo up; exec sleep 600") as pieces:
            next(iter(pieces))
            assert [one.state for one in sbx.commands.list()] == ["running"]
        wait_until("the command has ended", lambda: [one.state for one in sbx.commands.list()] == ["ended"])
        with sbx.stream_code(ENDLESS) as events:
            next(iter(events))
        assert sbx.run_code("6 * 7", timeout=60).text == "42"


class Cutting:
    """Passes bytes on to a server, and breaks the first connections off after so many bytes of their answers."""

    def __init__(self, target: Path, cuts: List[int]) -> None:
        self._target, self._cuts = target, cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        threading.Thread(target=pump, args=(client, server, None), daemon=True).start()
        pump(server, client, self._cuts)


def pump(source: socket.socket, target: socket.socket, cuts: Any) -> None:
    left = cuts.pop(0) if cuts else None
    try:
        while True:
            piece = source.recv(1 << 16)
            if not piece or (left is not None and left <= 0):
                break
            if left is not None:
                piece, left = piece[:left], left - len(piece)
            target.sendall(piece)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@pytest.mark.parametrize("cuts", [[0], [500], [700, 750], [0, 600, 900]])
def test_stream_that_breaks_is_asked_for_again_and_goes_on(server: Server, cuts: List[int]) -> None:
    labels, seen = label(), []  # type: ignore[var-annotated]
    code = "import time\nfor n in range(20):\n    print(n, flush=True)\n    time.sleep(0.02)"
    proxy = Cutting(server.socket, list(cuts))
    try:
        with Client(proxy.url) as client:
            result = client.run(code, labels=labels, on_stdout=seen.append)
    finally:
        proxy.close()
    wanted = "".join(f"{n}\n" for n in range(20))
    assert result.stdout == wanted and "".join(seen) == wanted and not proxy._cuts
    with Client(server.url) as client:
        assert [run["verdict"] for run in recorded(client, labels)] == ["exited"]


@pytest.fixture
def own() -> Iterator[List[Server]]:
    """Servers one after another in one place; the last is the one that is there."""
    directory = Path(tempfile.mkdtemp(prefix="bj-sdk-own-"))
    started = [start_server(directory)]
    try:
        yield started
    finally:
        started[-1].process.kill()
        started[-1].process.wait(DEADLINE_S)
        shutil.rmtree(directory)


def test_run_while_the_server_restarts_happens_once(own: List[Server]) -> None:
    labels = label()
    with Client(own[-1].url) as client:
        assert client.run("print(1)").ok  # its connection is kept, and will be a dead one
        own[-1].process.send_signal(signal.SIGTERM)
        own[-1].process.wait(DEADLINE_S)
        results: List[belljar.Result] = []
        asking = threading.Thread(target=lambda: results.append(client.run("print(2)", labels=labels)))
        asking.start()
        time.sleep(0.3)
        own.append(start_server(own[-1].directory))
        asking.join(DEADLINE_S)
        assert [result.stdout for result in results] == ["2\n"]
        assert len(recorded(client, labels)) == 1


def test_run_in_which_the_server_is_killed_is_told_with_what_it_began(own: List[Server]) -> None:
    labels, up = label(), threading.Event()
    with Client(own[-1].url) as client:
        errors: List[BaseException] = []

        def ask() -> None:
            try:
                client.run(ENDLESS, timeout=600, labels=labels, on_stdout=lambda text: up.set())
            except BaseException as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert up.wait(DEADLINE_S)
        os.kill(own[-1].process.pid, signal.SIGKILL)
        own[-1].process.wait(DEADLINE_S)
        own.append(start_server(own[-1].directory))
        asking.join(DEADLINE_S)
        (error,) = errors
        assert isinstance(error, belljar.IdempotencyError) and error.code == "outcome_unknown", error
        (run,) = recorded(client, labels)
        assert error.problem["executions"] == [run["execution_id"]]
