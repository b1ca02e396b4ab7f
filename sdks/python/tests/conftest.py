"""A live server for the tests, and a way to run asynchronous ones without a plugin."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Optional

import pytest

TOKEN = "0123456789abcdef-for-tests"
#: Longer than anything takes on a loaded machine; what takes longer hangs.
DEADLINE_S = 120


@dataclass
class Server:
    directory: Path
    socket: Path
    address: str
    process: "subprocess.Popen[str]"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"


def start_server(directory: Path, *options: str) -> Server:
    program = os.environ["BELLJAR_BIN"]
    socket = directory / "b.sock"
    command = [program, "serve", "--listen", "127.0.0.1:0", "--socket", str(socket), "--state", str(directory / "state")]
    process = subprocess.Popen(
        [*command, "--memory-reserve", "0", *options],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "BELLJAR_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    address = ""
    for line in process.stderr:
        if "listening on http" in line:
            address = line.split("listening on ")[1].strip()
        if "try:" in line:
            break
    assert address, f"no server: {process.poll()}"
    return Server(directory, socket, address, process)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="bj-sdk-"))
    started = start_server(directory)
    try:
        yield started
    finally:
        started.process.terminate()
        started.process.wait(DEADLINE_S)
        shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the developer's environment says where a server is."""
    for name in ("BELLJAR_URL", "BELLJAR_API_KEY", "BELLJAR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BELLJAR_SOCKET", str(tmp_path / "nobody.sock"))


def pytest_pyfunc_call(pyfuncitem: Any) -> Optional[bool]:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(function(**wanted), DEADLINE_S))
    return True
