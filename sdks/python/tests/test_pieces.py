"""What needs no sandbox: requests as they are built, places as they are found, answers as they are read."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sysconfig
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

import belljar
from belljar import _find, _retry, _tree, _wire, errors
from belljar.errors import from_problem


def test_sizes_and_times_are_read_and_mistakes_named() -> None:
    assert [_wire.size("memory", text) for text in ("10", "1k", "2M", "3 GiB", "1tb", 7)] == [
        10, 1 << 10, 2 << 20, 3 << 30, 1 << 40, 7,
    ]  # fmt: skip
    for wrong in ("", "x", "-1", "1.5g", "1 x"):
        with pytest.raises(ValueError, match="memory"):
            _wire.size("memory", wrong)
    assert (_wire.milliseconds("timeout", 0.0001), _wire.milliseconds("timeout", 1.5)) == (1, 1500)
    for number in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            _wire.milliseconds("timeout", number)
    with pytest.raises(TypeError, match="command"):
        _wire.words("command", "ls -l")


def test_values_of_cases_are_spelled_as_grading_reads_them() -> None:
    value = {"t": (1, [2.5, None]), "s": {3}, "b": b"\xff", "c": 1 + 2j, "n": float("inf")}
    assert _wire.value(value) == {
        "t": {"$tuple": [1, [2.5, None]]},
        "s": {"$set": [3]},
        "b": {"$bytes": "/w=="},
        "c": {"$complex": [1.0, 2.0]},
        "n": {"$float": "inf"},
    }
    assert _wire.value({1: "a"}) == {"$dict": [[1, "a"]]} and _wire.value({"$tuple": 1}) == {"$dict": [["$tuple", 1]]}
    with pytest.raises(TypeError, match="object"):
        _wire.value(object())


def test_paths_keep_what_they_say() -> None:
    assert _wire.inside("a b/ü?#") == "workspace/a%20b/%C3%BC%3F%23"
    assert _wire.inside("/x/../y") == "x/%2E%2E/y" and _wire.inside("/") == "%2E"
    for wrong in ("", ".", ".."):
        with pytest.raises(ValueError):
            _wire.segment(wrong)


def test_places_by_argument_environment_and_default(tmp_path: Path) -> None:
    place = _find.place("http://127.0.0.1:7070/", None, {"BELLJAR_API_KEY": "k"})
    assert (place.base_url, place.key, place.may_start) == ("http://127.0.0.1:7070", "k", False)
    place = _find.place(None, None, {"BELLJAR_URL": "unix:///a%20b.sock", "BELLJAR_API_KEY": "k"})
    assert (place.socket, place.key, place.may_start) == ("/a b.sock", None, False)
    place = _find.place(None, None, {"XDG_RUNTIME_DIR": "/run/user/7"})
    assert (place.socket, place.may_start) == ("/run/user/7/belljar/belljar.sock", True)
    assert _find.place(None, None, {"BELLJAR_SOCKET": "/s"}).socket == "/s"
    for wrong in ("localhost:7070", "ftp://x", "unix://x", "http://", "http://x?y"):
        with pytest.raises(ValueError, match="unix:///PATH"):
            _find.place(wrong, None, {})


def test_socket_of_another_user_is_sent_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        _find.check_owner(str(path))  # ours is fine
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setenv("BELLJAR_SOCKET", str(path))
        with pytest.raises(belljar.ConnectionFailed, match="nothing was sent"):
            belljar.Client().run("print(1)")
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_program_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BELLJAR_BIN", str(tmp_path / "absent"))
    with pytest.raises(belljar.ServerNotFound, match="BELLJAR_BIN"):
        belljar.Client().run("print(1)")
    monkeypatch.delenv("BELLJAR_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(belljar.ServerNotFound, match="pip install belljar"):
        belljar.Client().run("print(1)")


def test_problems_become_errors_of_their_code() -> None:
    cases: List[Tuple[int, Dict[str, Any], type]] = [
        (400, {"kind": "spec", "field": "limits.wall_ms"}, belljar.InvalidRequest),
        (400, {"code": "something_new"}, belljar.InvalidRequest),
        (403, {"code": "policy", "rule": "max_memory"}, belljar.PolicyError),
        (403, {"kind": "forbidden"}, belljar.ForbiddenError),
        (404, {"kind": "not_found"}, belljar.NotFoundError),
        (409, {"kind": "exists"}, belljar.ConflictError),
        (422, {"kind": "screened"}, belljar.ScreenedError),
        (422, {"code": "idempotency_mismatch"}, belljar.IdempotencyError),
        (429, {"kind": "rate_limited", "retry_after_s": 3}, belljar.BusyError),
        (503, {"kind": "unavailable"}, belljar.UnavailableError),
        (500, {"kind": "setup"}, belljar.ServerFault),
        (418, {}, belljar.ApiError),
    ]
    for status, problem, kind in cases:
        error = from_problem(status, problem)
        assert type(error) is kind and error.status == status, problem
    error = from_problem(503, {"kind": "unavailable", "detail": "level x needs y. hint: use z"})
    assert error.hint == "use z" and "level x" in str(error)


def test_every_code_of_the_server_has_its_error_and_no_other() -> None:
    document = Path(__file__).parents[3] / "docs/reference/openapi.json"
    problem = json.loads(document.read_text())["components"]["schemas"]["Problem"]
    assert set(errors._BY_CODE) == set(problem["properties"]["code"]["enum"])
    assert {kind.__name__ for kind in errors._BY_CODE.values()} <= set(belljar.__all__)


def test_lines_are_split_at_line_feeds_only() -> None:
    lines = _retry.Lines()
    text = json.dumps({"type": "stdout", "data": "a\u2028b\x85c"}, ensure_ascii=False).encode() + b"\n"
    assert lines.feed(text[:20]) == []
    assert lines.feed(text[20:] + b'{"type": "x"}\n{"ty') == [{"type": "stdout", "data": "a\u2028b\x85c"}, {"type": "x"}]
    with pytest.raises(belljar.BusyError):
        lines.feed(b'pe": "error", "kind": "busy", "status": 429}\n')


class Scripted(BaseHTTPRequestHandler):
    """Answers with what the test has written down, in order."""

    answers: List[Tuple[int, Dict[str, str], bytes]] = []
    seen: List[Tuple[str, str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, self.headers["idempotency-key"]))
        status, headers, body = self.answers.pop(0)
        if status == 0:
            self.connection.close()
            return
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.seen.append((self.path, ""))
        status, headers, body = self.answers.pop(0)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


OUTCOME = b'{"type": "outcome", "verdict": {"kind": "exited", "code": 0}, "exit_code": 0, "stdout": "hi"}\n'


@pytest.fixture
def scripted() -> Iterator[str]:
    Scripted.answers, Scripted.seen = [], []
    with HTTPServer(("127.0.0.1", 0), Scripted) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()
        thread.join()


def busy(**headers: str) -> Tuple[int, Dict[str, str], bytes]:
    return 429, {"retry-after": "0", **headers}, b'{"kind": "busy", "detail": "full"}'


def test_refusals_are_tried_again_with_the_same_key(scripted: str) -> None:
    Scripted.answers = [busy(), (503, {"retry-after": "0"}, b"not json"), (200, {}, OUTCOME)]
    with belljar.Client(scripted) as client:
        assert client.run("print(1)").stdout == "hi"
    keys = {key for _, key in Scripted.seen}
    assert len(Scripted.seen) == 3 and len(keys) == 1 and None not in keys
    Scripted.answers = [(200, {}, OUTCOME)]
    with belljar.Client(scripted) as client:
        client.run("print(1)")
    assert Scripted.seen[-1][1] not in keys


def test_a_run_whose_connection_broke_is_asked_for_again_with_its_key(scripted: str) -> None:
    Scripted.answers = [(0, {}, b""), (0, {}, b""), (200, {}, OUTCOME)]
    with belljar.Client(scripted) as client:
        assert client.run("print(1)").stdout == "hi"
    assert len(Scripted.seen) == 3 and len({key for _, key in Scripted.seen}) == 1


def test_only_what_heeds_its_key_is_sent_again() -> None:
    document = json.loads((Path(__file__).parents[3] / "docs/reference/openapi.json").read_text())
    for path, methods in document["paths"].items():
        if "post" in methods:
            heeds = "Idempotency-Key" in json.dumps(methods["post"].get("parameters", []))
            filled = re.sub(r"{[^}]*}", "x", path)
            assert _retry.Call("POST", filled).repeatable == heeds, path
    assert _retry.Call("GET", "/v1/sandboxes/x/files/y").repeatable


def test_what_is_not_worth_another_try_is_told_at_once(scripted: str) -> None:
    for answer, kind in [
        (busy(**{"should-retry": "false"}), belljar.BusyError),
        (busy(**{"retry-after": "3600"}), belljar.BusyError),
        ((503, {}, b'{"kind": "unavailable"}'), belljar.UnavailableError),
        ((400, {}, b'{"kind": "spec"}'), belljar.InvalidRequest),
        ((500, {}, b"oops"), belljar.ServerFault),
        ((409, {}, b'{"code": "outcome_unknown", "executions": ["01X"]}'), belljar.IdempotencyError),
        ((200, {}, b'{"type": "stdout", "data": "x"}\n'), belljar.StreamCut),
        ((200, {}, b"no json\n"), belljar.ConnectionFailed),
    ]:
        Scripted.answers, Scripted.seen = [answer], []
        with belljar.Client(scripted) as client:
            with pytest.raises(kind):
                client.run("print(1)")
        assert len(Scripted.seen) == 1, answer


def test_lists_are_read_to_their_last_page(scripted: str) -> None:
    one = {"id": "x", "name": "n", "state": "running"}
    pages = [{"sandboxes": [one], "next_cursor": "a/b"}, {"sandboxes": [one, one], "next_cursor": None}]
    Scripted.answers = [(200, {}, json.dumps(page).encode()) for page in pages]
    with belljar.Client(scripted) as client:
        assert len(belljar.Sandbox.list(state="running", client=client)) == 3
    assert [path for path, _ in Scripted.seen] == [
        "/v1/sandboxes?state=running",
        "/v1/sandboxes?state=running&cursor=a%2Fb",
    ]


def test_tries_have_an_end(scripted: str) -> None:
    Scripted.answers = [busy() for _ in range(10)]
    with belljar.Client(scripted, max_retries=2) as client:
        with pytest.raises(belljar.BusyError, match="full"):
            client.run("print(1)")
    assert len(Scripted.seen) == 3


def test_unreachable_server_is_told() -> None:
    with belljar.Client("http://127.0.0.1:1", max_retries=1) as client:
        with pytest.raises(belljar.ConnectionFailed, match="127.0.0.1:1"):
            client.run("print(1)")


def archive(*members: Tuple[str, bytes, str]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = text
                tar.addfile(member)
            else:
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    made.seek(0)
    return made


def test_hostile_archive_writes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    for name in ("x/../../precious", "/" + str(tmp_path / "precious").lstrip("/")):
        with pytest.raises(belljar.BelljarError, match="leads out"):
            _tree.unpack(archive((name, tarfile.REGTYPE, "gone")), tmp_path / "out")
    links = archive(
        ("x/link", tarfile.SYMTYPE, str(tmp_path)), ("x/hard", tarfile.LNKTYPE, "x/link"), ("x/link/precious", tarfile.REGTYPE, "gone")
    )
    _tree.unpack(links, tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "kept" and not (tmp_path / "out/link").is_symlink()
    # A link that was there before is not written through either.
    (tmp_path / "two").mkdir()
    (tmp_path / "two/file").symlink_to(tmp_path / "precious")
    (tmp_path / "two/dir").symlink_to(tmp_path)
    _tree.unpack(archive(("x/file", tarfile.REGTYPE, "new")), tmp_path / "two")
    assert (tmp_path / "two/file").read_text() == "new" and (tmp_path / "precious").read_text() == "kept"
    with pytest.raises(belljar.BelljarError, match="is a link"):
        _tree.unpack(archive(("x/dir/precious", tarfile.REGTYPE, "gone")), tmp_path / "two")
    assert (tmp_path / "precious").read_text() == "kept"
