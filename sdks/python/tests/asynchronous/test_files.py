"""Files of a sandbox."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

import belljar
from belljar import AsyncClient, AsyncSandbox

from ..conftest import Server


async def test_written_read_listed_moved_removed(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            files = sandbox.files
            await files.write("dir/a b#?%.txt", "text é")
            assert await files.read("/workspace/dir/a b#?%.txt") == "text é"
            await files.write("raw", io.BytesIO(b"\xff" * 100_000), mode=0o755)
            assert await files.read("raw", "bytes") == b"\xff" * 100_000
            assert await files.read("raw", "bytes", offset=99_998, length=1) == b"\xff"
            info = await files.info("raw")
            assert (info.is_file, info.bytes, info.mode & 0o777) == (True, 100_000, 0o755)
            await files.write("raw", "more", append=True)
            assert (await files.info("raw")).bytes == 100_004
            await files.rename("raw", "dir/moved")
            assert [one.name for one in await files.list("dir")] == ["a b#?%.txt", "moved"]
            assert [one.name for one in await files.list()] == ["dir"]
            await files.make_dir("x/y")
            assert (await files.info("x/y")).is_dir
            await files.set_mode("dir/moved", 0o600)
            await files.remove("dir/moved")
            with pytest.raises(belljar.ConflictError):
                await files.remove("dir")
            await files.remove("dir", recursive=True)
            assert not await files.exists("dir")


async def test_mistakes_have_their_names(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            with pytest.raises(belljar.NotFoundError) as caught:
                await sandbox.files.read("absent")
            assert caught.value.code == "not_found" and caught.value.status == 404
            with pytest.raises(belljar.ConflictError):
                await sandbox.files.read("/workspace")
            with pytest.raises(ValueError):
                await sandbox.files.read("")
        with pytest.raises(belljar.NotFoundError):
            await sandbox.files.exists("anything")


async def test_dots_lead_nowhere_else(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.write("a.txt", "here")
            assert await sandbox.files.read("/workspace/../workspace/./a.txt") == "here"
            # The sandbox's own, made up for it: not the host's.
            names = await sandbox.files.read("/../../etc/passwd")
            assert "sandbox" in names and len(names.splitlines()) < 10


async def test_trees_go_in_and_come_out(server: Server, tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/a.txt").write_text("a")
    (tmp_path / "in/run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "in/run.sh").chmod(0o755)
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.upload(tmp_path / "in", "tree")
            assert (await sandbox.commands.run(["/workspace/tree/run.sh"], check=True)).stdout == "ran\n"
            await sandbox.files.upload(tmp_path / "in/sub/a.txt", "one.txt")
            await sandbox.commands.run("ln -s /etc/passwd tree/link; mkfifo tree/fifo; echo b > tree/sub/b.txt", check=True)
            await sandbox.files.download("tree", tmp_path / "out")
            await sandbox.files.download("one.txt", tmp_path / "one.txt")
    assert (tmp_path / "one.txt").read_text() == "a"
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))
    assert found == ["run.sh", "sub", "sub/a.txt", "sub/b.txt"]
    assert os.access(tmp_path / "out/run.sh", os.X_OK)


async def test_watch_tells_what_changes(server: Server) -> None:
    allowed = {"allow_syscalls": ["inotify_init1", "inotify_add_watch", "inotify_rm_watch"]}
    async with AsyncClient(server.url) as client:
        async with await AsyncSandbox.create(client=client) as sandbox:
            with pytest.raises(belljar.ForbiddenError):
                async for _ in sandbox.files.watch():
                    pass
        async with await AsyncSandbox.create(client=client, options=allowed) as sandbox:
            await sandbox.files.make_dir("dir")
            # Written once a moment until it is seen: nothing else tells that the watch has begun.
            writer = await sandbox.commands.run("while :; do echo x > dir/new.txt; sleep 0.1; done", background=True)
            async for change in sandbox.files.watch("dir"):
                if change.kind in ("created", "written"):
                    assert change.path == "/workspace/dir/new.txt"
                    break
            await writer.kill()
