# Made by tools/make_sync.py out of tests/asynchronous/test_files.py. Change that, not this.
"""Files of a sandbox."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

import belljar
from belljar import Client, Sandbox

from ..conftest import Server


def test_written_read_listed_moved_removed(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            files = sandbox.files
            files.write("dir/a b#?%.txt", "text é")
            assert files.read("/workspace/dir/a b#?%.txt") == "text é"
            files.write("raw", io.BytesIO(b"\xff" * 100_000), mode=0o755)
            assert files.read("raw", "bytes") == b"\xff" * 100_000
            assert files.read("raw", "bytes", offset=99_998, length=1) == b"\xff"
            info = files.info("raw")
            assert (info.is_file, info.bytes, info.mode & 0o777) == (True, 100_000, 0o755)
            files.write("raw", "more", append=True)
            assert (files.info("raw")).bytes == 100_004
            files.rename("raw", "dir/moved")
            assert [one.name for one in files.list("dir")] == ["a b#?%.txt", "moved"]
            assert [one.name for one in files.list()] == ["dir"]
            files.make_dir("x/y")
            assert (files.info("x/y")).is_dir
            files.set_mode("dir/moved", 0o600)
            files.remove("dir/moved")
            with pytest.raises(belljar.ConflictError):
                files.remove("dir")
            files.remove("dir", recursive=True)
            assert not files.exists("dir")


def test_mistakes_have_their_names(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            with pytest.raises(belljar.NotFoundError) as caught:
                sandbox.files.read("absent")
            assert caught.value.code == "not_found" and caught.value.status == 404
            with pytest.raises(belljar.ConflictError):
                sandbox.files.read("/workspace")
            with pytest.raises(ValueError):
                sandbox.files.read("")
        with pytest.raises(belljar.NotFoundError):
            sandbox.files.exists("anything")


def test_dots_lead_nowhere_else(server: Server) -> None:
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            sandbox.files.write("a.txt", "here")
            assert sandbox.files.read("/workspace/../workspace/./a.txt") == "here"
            # The sandbox's own, made up for it: not the host's.
            names = sandbox.files.read("/../../etc/passwd")
            assert "sandbox" in names and len(names.splitlines()) < 10


def test_trees_go_in_and_come_out(server: Server, tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/a.txt").write_text("a")
    (tmp_path / "in/run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "in/run.sh").chmod(0o755)
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            sandbox.files.upload(tmp_path / "in", "tree")
            assert (sandbox.commands.run(["/workspace/tree/run.sh"], check=True)).stdout == "ran\n"
            sandbox.files.upload(tmp_path / "in/sub/a.txt", "one.txt")
            sandbox.commands.run("ln -s /etc/passwd tree/link; mkfifo tree/fifo; echo b > tree/sub/b.txt", check=True)
            sandbox.files.download("tree", tmp_path / "out")
            sandbox.files.download("one.txt", tmp_path / "one.txt")
    assert (tmp_path / "one.txt").read_text() == "a"
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))
    assert found == ["run.sh", "sub", "sub/a.txt", "sub/b.txt"]
    assert os.access(tmp_path / "out/run.sh", os.X_OK)


def test_watch_tells_what_changes(server: Server) -> None:
    allowed = {"allow_syscalls": ["inotify_init1", "inotify_add_watch", "inotify_rm_watch"]}
    with Client(server.url) as client:
        with Sandbox.create(client=client) as sandbox:
            with pytest.raises(belljar.ForbiddenError):
                for _ in sandbox.files.watch():
                    pass
        with Sandbox.create(client=client, options=allowed) as sandbox:
            sandbox.files.make_dir("dir")
            # Written once a moment until it is seen: nothing else tells that the watch has begun.
            writer = sandbox.commands.run("while :; do echo x > dir/new.txt; sleep 0.1; done", background=True)
            for change in sandbox.files.watch("dir"):
                if change.kind in ("created", "written"):
                    assert change.path == "/workspace/dir/new.txt"
                    break
            writer.kill()
