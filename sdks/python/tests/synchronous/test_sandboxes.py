# Made by tools/make_sync.py out of tests/asynchronous/test_sandboxes.py. Change that, not this.
"""Sandboxes that stay."""

from __future__ import annotations

from typing import List

import pytest

import belljar
from belljar import Client, Sandbox

from ..conftest import Server


def test_created_sandbox_goes_with_its_block_and_a_connected_one_stays(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client, labels={"suite": "sdk"}, memory="256M") as sandbox:
            with Sandbox.connect(sandbox.name, client=client) as again:
                assert again.id == sandbox.id
            found = Sandbox.list(label="suite=sdk", client=client)
            assert sandbox.name in [one.name for one in found]
            assert (sandbox.info()).state == "running"
        with pytest.raises(belljar.NotFoundError):
            Sandbox.connect(sandbox.name, client=client)


def test_sandbox_finds_the_server_by_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", server.url)
    with Sandbox.create() as sandbox:
        assert (sandbox.run_code("1 + 1")).text == "2"


def test_code_keeps_its_variables_and_shows_its_values(server: Server) -> None:
    out: List[str] = []
    results: List[belljar.RichResult] = []
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            assert (sandbox.run_code("x = 6")).ok
            shown = sandbox.run_code("print('hi')\n{'a': x * 7}", on_stdout=out.append, on_result=results.append)
            assert (shown.stdout, shown.text, shown.results[0].json) == ("hi\n", "{'a': 42}", {"a": 42})
            assert "".join(out) == "hi\n" and len(results) == 1
            wrong = sandbox.run_code("1 / 0")
            assert not wrong.ok and wrong.error is not None and wrong.error.name == "ZeroDivisionError"
            with pytest.raises(belljar.ProgramFailed, match="ZeroDivisionError"):
                wrong.check()
            shell = sandbox.run_code("echo $((6 * 7))", language="bash")
            assert shell.check().stdout == "42\n"
            slow = sandbox.run_code("while True: pass", timeout=0.3)
            assert slow.error is not None and slow.error.name == "TimeLimit"
            other = sandbox.contexts.create("python", cwd="/tmp")
            assert not (sandbox.run_code("x", context=other.id)).ok
            assert other.id in [one.id for one in sandbox.contexts.list()]
            assert sandbox.contexts.interrupt("python") == "idle"
            sandbox.contexts.restart("python")
            assert not (sandbox.run_code("x")).ok
            sandbox.contexts.remove(other.id)


def test_pictures_are_bytes(server: Server) -> None:
    code = (
        "import base64\n"
        "class Picture:\n"
        "    def _repr_png_(self):\n"
        "        return b'\\x89PNG\\r\\n\\x1a\\n' + b'pixels'\n"
        "Picture()\n"
    )
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            shown = sandbox.run_code(code)
    assert shown.results[0].png == b"\x89PNG\r\n\x1a\npixels"


def test_commands_with_and_without_a_shell(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            script = sandbox.commands.run("echo $NAME; pwd; exit 3", env={"NAME": "n"}, cwd="/tmp")
            assert (script.stdout, script.exit_code, script.ok) == ("n\n/tmp\n", 3, False)
            words = sandbox.commands.run(["cat"], stdin=b"\xff", check=True)
            assert words.stdout == "\ufffd"
            slow = sandbox.commands.run(["sleep", "60"], timeout=0.3)
            assert slow.timed_out and slow.fault_domain == "limit"
            with pytest.raises(belljar.ProgramFailed):
                sandbox.commands.run("false", check=True)
            ran = [one.cmd for one in sandbox.commands.list()]
            assert ["cat"] in ran


def test_command_in_the_background_is_fed_followed_and_ended(server: Server) -> None:
    out: List[str] = []
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            command = sandbox.commands.run("read line; echo got $line", background=True, keep_stdin=True)
            found = sandbox.commands.connect(command.id)
            assert (found.info()).state == "running"
            found.send_stdin("words\n", close=True)
            result = command.wait(on_stdout=out.append)
            assert result.check().stdout == "got words\n" and "".join(out) == "got words\n"
            again = command.wait()
            assert again.stdout == "got words\n"
            sleeper = sandbox.commands.run(["sleep", "1000"], background=True)
            sleeper.kill()
            assert (sleeper.wait()).signal == 9


def test_snapshot_rollback_undo_and_diff(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client, undo=True) as sandbox:
            sandbox.files.write("keep.txt", "old")
            point = sandbox.snapshot("good")
            assert point.tag == "good" and not point.automatic
            sandbox.commands.run("echo new > keep.txt; touch mess", check=True)
            changed = sandbox.diff("good")
            assert [(one.path, one.kind) for one in changed.changes] == [
                ("/workspace/keep.txt", "modified"),
                ("/workspace/mess", "added"),
            ]
            sandbox.undo()
            assert sandbox.files.read("keep.txt") == "old"
            sandbox.redo()
            assert sandbox.files.read("keep.txt") == "new\n"
            sandbox.rollback("good")
            assert sandbox.files.read("keep.txt") == "old" and not sandbox.files.exists("mess")
            assert "good" in [one.tag for one in sandbox.snapshots()]
            with pytest.raises(belljar.NotFoundError):
                sandbox.rollback("never")


def test_forks_part_and_one_takes_the_name(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            sandbox.files.write("shared", "both")
            first, second = sandbox.fork(2)
            with second:
                first.files.write("own", "first")
                assert not second.files.exists("own") and second.files.read("shared") == "both"
            info = first.promote(sandbox.name)
            assert info.name == sandbox.name == first.name
            assert sandbox.files.read("own") == "first"


def test_states_and_what_does_not_fit_them(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            assert (sandbox.pause()).state == "paused"
            assert (sandbox.resume()).state == "running"
            assert (sandbox.stop(grace=1)).state == "stopped"
            with pytest.raises(belljar.ConflictError):
                sandbox.commands.run("true")
            assert (sandbox.start()).state == "running"
            assert (sandbox.kill()).state == "stopped"


def test_archive_makes_another_sandbox(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            sandbox.files.write("a.txt", "travels")
            archive = sandbox.export()
        with Sandbox.import_archive(archive, client=client) as other:
            assert other.files.read("a.txt") == "travels"


def test_logs_tell_what_all_commands_wrote(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            sandbox.commands.run("echo one", check=True)
            sandbox.commands.run("echo two >&2", check=True)
            told = [piece for piece in sandbox.logs()]
    assert [(one.stream, one.text) for one in told] == [("stdout", "one\n"), ("stderr", "two\n")]
