"""With nothing set: the server that is there, or one of our own that ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, Iterator

import pytest

import belljar
from belljar import _local

DEADLINE_S = 120


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BELLJAR_SOCKET", str(tmp_path / "b.sock"))
    monkeypatch.setenv("BELLJAR_STATE", str(tmp_path / "state"))
    yield tmp_path
    belljar.stop_server()


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while not gone(pid):
        assert time.monotonic() < until, f"{pid} is still there"
        time.sleep(0.02)


def server_pid() -> int:
    child = _local.server._child
    assert child is not None
    return child.pid


def test_server_is_started_once_and_ended_when_told(place: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert {one.stdout for one in threads.map(lambda _: belljar.run("print(6 * 7)"), range(8))} == {"42\n"}
    pid = server_pid()
    assert belljar.run("print(1)").ok and server_pid() == pid
    belljar.stop_server()
    assert gone(pid) and not _local.listens(str(place / "b.sock"))
    assert belljar.run("print(2)").stdout == "2\n" and server_pid() != pid


def test_server_that_is_killed_is_started_again(place: Path) -> None:
    assert belljar.run("print(1)").ok
    os.kill(server_pid(), signal.SIGKILL)
    child = _local.server._child
    assert child is not None
    child.wait()  # all its threads: until the last has ended its connections stay open
    assert belljar.run("print(2)").stdout == "2\n"


def test_server_of_somebody_else_is_used_and_left(place: Path) -> None:
    assert belljar.run("print(1)").ok
    pid = server_pid()
    code = "import belljar; print(belljar.run('print(2)').stdout, belljar._local.server._child)"
    other = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    assert other.stdout == "2\n None\n"
    assert server_pid() == pid and belljar.run("print(3)").ok


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_server_ends_with_its_process(place: Path, how: str) -> None:
    code = (
        "import belljar, sys\n"
        "belljar.run('print(1)').check()\n"
        "print(belljar._local.server._child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        pid = int(other.stdout.readline())
        assert not gone(pid)
        other.kill() if how == "is killed" else other.stdin.close()
        other.wait(DEADLINE_S)
    wait_until_gone(pid)


def test_forked_child_uses_the_server_and_does_not_end_it(place: Path) -> None:
    assert belljar.run("print(1)").ok
    pid = server_pid()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if belljar.run("print(2)").ok and _local.server._child is None else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert not gone(pid) and belljar.run("print(3)").ok


def test_words_of_a_server_that_cannot_start_are_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = place / "broken"
    program.write_text("#!/bin/sh\necho 'belljar: no such luck' >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("BELLJAR_BIN", str(program))
    with pytest.raises(belljar.ServerNotFound, match="ended with 125: belljar: no such luck"):
        belljar.run("print(1)")


def test_secrets_of_this_process_are_not_seen_inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDK_SECRET", "do not tell")
    code = (
        "import os\n"
        "print(dict(os.environ))\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        print(open(f'/proc/{pid}/environ').read())\n"
        "    except OSError as error:\n"
        "        print(pid, error.strerror)\n"
    )
    control: Dict[str, str] = dict(os.environ)
    seen = subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"], stdout=-1, text=True, env=control)
    assert "do not tell" in seen.stdout
    result = belljar.run(code)
    assert result.check().stdout.count("PATH=") >= 1 and "do not tell" not in result.stdout
