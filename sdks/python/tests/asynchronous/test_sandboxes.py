"""Sandboxes that stay."""

from __future__ import annotations

from typing import List

import pytest

import belljar
from belljar import AsyncClient, AsyncSandbox

from ..conftest import Server


async def test_created_sandbox_goes_with_its_block_and_a_connected_one_stays(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client, labels={"suite": "sdk"}, memory="256M") as sandbox:
            async with await AsyncSandbox.connect(sandbox.name, client=client) as again:
                assert again.id == sandbox.id
            found = await AsyncSandbox.list(label="suite=sdk", client=client)
            assert sandbox.name in [one.name for one in found]
            assert (await sandbox.info()).state == "running"
        with pytest.raises(belljar.NotFoundError):
            await AsyncSandbox.connect(sandbox.name, client=client)


async def test_sandbox_finds_the_server_by_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", server.url)
    async with await AsyncSandbox.create() as sandbox:
        assert (await sandbox.run_code("1 + 1")).text == "2"


async def test_code_keeps_its_variables_and_shows_its_values(server: Server) -> None:
    out: List[str] = []
    results: List[belljar.RichResult] = []
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            assert (await sandbox.run_code("x = 6")).ok
            shown = await sandbox.run_code("print('hi')\n{'a': x * 7}", on_stdout=out.append, on_result=results.append)
            assert (shown.stdout, shown.text, shown.results[0].json) == ("hi\n", "{'a': 42}", {"a": 42})
            assert "".join(out) == "hi\n" and len(results) == 1
            wrong = await sandbox.run_code("1 / 0")
            assert not wrong.ok and wrong.error is not None and wrong.error.name == "ZeroDivisionError"
            with pytest.raises(belljar.ProgramFailed, match="ZeroDivisionError"):
                wrong.check()
            shell = await sandbox.run_code("echo $((6 * 7))", language="bash")
            assert shell.check().stdout == "42\n"
            slow = await sandbox.run_code("while True: pass", timeout=0.3)
            assert slow.error is not None and slow.error.name == "TimeLimit"
            other = await sandbox.contexts.create("python", cwd="/tmp")
            assert not (await sandbox.run_code("x", context=other.id)).ok
            assert other.id in [one.id for one in await sandbox.contexts.list()]
            assert await sandbox.contexts.interrupt("python") == "idle"
            await sandbox.contexts.restart("python")
            assert not (await sandbox.run_code("x")).ok
            await sandbox.contexts.remove(other.id)


async def test_pictures_are_bytes(server: Server) -> None:
    code = (
        "import base64\n"
        "class Picture:\n"
        "    def _repr_png_(self):\n"
        "        return b'\\x89PNG\\r\\n\\x1a\\n' + b'pixels'\n"
        "Picture()\n"
    )
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            shown = await sandbox.run_code(code)
    assert shown.results[0].png == b"\x89PNG\r\n\x1a\npixels"


async def test_commands_with_and_without_a_shell(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            script = await sandbox.commands.run("echo $NAME; pwd; exit 3", env={"NAME": "n"}, cwd="/tmp")
            assert (script.stdout, script.exit_code, script.ok) == ("n\n/tmp\n", 3, False)
            words = await sandbox.commands.run(["cat"], stdin=b"\xff", check=True)
            assert words.stdout == "\ufffd"
            slow = await sandbox.commands.run(["sleep", "60"], timeout=0.3)
            assert slow.timed_out and slow.fault_domain == "limit"
            with pytest.raises(belljar.ProgramFailed):
                await sandbox.commands.run("false", check=True)
            ran = [one.cmd for one in await sandbox.commands.list()]
            assert ["cat"] in ran


async def test_command_in_the_background_is_fed_followed_and_ended(server: Server) -> None:
    out: List[str] = []
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            command = await sandbox.commands.run("read line; echo got $line", background=True, keep_stdin=True)
            found = await sandbox.commands.connect(command.id)
            assert (await found.info()).state == "running"
            await found.send_stdin("words\n", close=True)
            result = await command.wait(on_stdout=out.append)
            assert result.check().stdout == "got words\n" and "".join(out) == "got words\n"
            again = await command.wait()
            assert again.stdout == "got words\n"
            sleeper = await sandbox.commands.run(["sleep", "1000"], background=True)
            await sleeper.kill()
            assert (await sleeper.wait()).signal == 9


async def test_snapshot_rollback_undo_and_diff(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client, undo=True) as sandbox:
            await sandbox.files.write("keep.txt", "old")
            point = await sandbox.snapshot("good")
            assert point.tag == "good" and not point.automatic
            await sandbox.commands.run("echo new > keep.txt; touch mess", check=True)
            changed = await sandbox.diff("good")
            assert [(one.path, one.kind) for one in changed.changes] == [
                ("/workspace/keep.txt", "modified"),
                ("/workspace/mess", "added"),
            ]
            await sandbox.undo()
            assert await sandbox.files.read("keep.txt") == "old"
            await sandbox.redo()
            assert await sandbox.files.read("keep.txt") == "new\n"
            await sandbox.rollback("good")
            assert await sandbox.files.read("keep.txt") == "old" and not await sandbox.files.exists("mess")
            assert "good" in [one.tag for one in await sandbox.snapshots()]
            with pytest.raises(belljar.NotFoundError):
                await sandbox.rollback("never")


async def test_forks_part_and_one_takes_the_name(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.write("shared", "both")
            first, second = await sandbox.fork(2)
            async with second:
                await first.files.write("own", "first")
                assert not await second.files.exists("own") and await second.files.read("shared") == "both"
            info = await first.promote(sandbox.name)
            assert info.name == sandbox.name == first.name
            assert await sandbox.files.read("own") == "first"


async def test_states_and_what_does_not_fit_them(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            assert (await sandbox.pause()).state == "paused"
            assert (await sandbox.resume()).state == "running"
            assert (await sandbox.stop(grace=1)).state == "stopped"
            with pytest.raises(belljar.ConflictError):
                await sandbox.commands.run("true")
            assert (await sandbox.start()).state == "running"
            assert (await sandbox.kill()).state == "stopped"


async def test_archive_makes_another_sandbox(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.write("a.txt", "travels")
            archive = await sandbox.export()
        async with await AsyncSandbox.import_archive(archive, client=client) as other:
            assert await other.files.read("a.txt") == "travels"


async def test_logs_tell_what_all_commands_wrote(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.commands.run("echo one", check=True)
            await sandbox.commands.run("echo two >&2", check=True)
            told = [piece async for piece in sandbox.logs()]
    assert [(one.stream, one.text) for one in told] == [("stdout", "one\n"), ("stderr", "two\n")]
