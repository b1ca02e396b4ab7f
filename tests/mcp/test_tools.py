"""The tools as the Python client of MCP calls them: over standard input and output and over HTTP, in both revisions."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

BELLJAR = os.environ["BELLJAR_BIN"]
TOKEN = "0123456789abcdef-for-tests"
DEADLINE_S = 120
MODERN = "2026-07-28"
SECRET = "the launcher's own secret"
TOOLS = [
    "run_code", "run_command", "create_sandbox", "list_sandboxes", "remove_sandbox", "read_file", "write_file",
    "list_files", "snapshot_sandbox", "rollback_sandbox", "test_code", "explain_block",
]  # fmt: skip
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="session")
def server():
    directory = Path(tempfile.mkdtemp(prefix="bj-mcp-"))
    command = [BELLJAR, "serve", "--listen", "127.0.0.1:0", "--socket", directory / "b.sock", "--state", directory / "state"]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "BELLJAR_TOKEN": TOKEN}
    process = subprocess.Popen([*command, "--memory-reserve", "0"], env=environment, stderr=subprocess.PIPE, text=True)
    address = None
    for line in process.stderr:
        if "listening on http" in line:
            address = line.split("listening on ")[1].strip()
        if "try:" in line:
            break
    yield directory, address
    process.terminate()
    process.wait(DEADLINE_S)
    shutil.rmtree(directory)


@pytest.fixture(params=["stdio", "stdio to a server", "http"])
def transport(request, server, tmp_path):
    """What connects to the tools: alone, with a server that runs, and over HTTP."""
    directory, address = server
    if request.param == "http":
        return lambda: http_transport(f"{address}/mcp", {"Authorization": f"Bearer {TOKEN}"})
    # One that is there already, or one that this process becomes.
    socket = directory / "b.sock" if request.param == "stdio to a server" else tmp_path / "b.sock"
    environment = {
        "BELLJAR_SOCKET": str(socket),
        "BELLJAR_STATE": str(tmp_path / "state"),
        "HOME": os.environ["HOME"],
        "LAUNCHER_SECRET": SECRET,
    }
    return lambda: StdioServerParameters(command=BELLJAR, args=["mcp"], env=environment)


@asynccontextmanager
async def http_transport(url, headers):
    async with httpx2.AsyncClient(headers=headers, timeout=DEADLINE_S) as http:
        async with streamable_http_client(url, http_client=http) as streams:
            yield streams


@pytest.fixture(params=["legacy", MODERN, "auto"])
def mode(request):
    return request.param


def with_client(transport, mode, body):
    async def main():
        async with Client(transport(), mode=mode, read_timeout_seconds=DEADLINE_S) as client:
            await body(client)

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def words(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


def test_everything_is_listed_with_its_schemas(transport, mode):
    async def body(client):
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        for tool in tools:
            assert tool.output_schema["type"] == "object" and tool.annotations.open_world_hint is False
        hints = {tool.name: tool.annotations for tool in tools}
        assert hints["read_file"].read_only_hint and hints["remove_sandbox"].destructive_hint
        assert [one.uri for one in (await client.list_resources()).resources] == ["belljar://guide"]
        assert len((await client.list_resource_templates()).resource_templates) == 1
        assert [one.name for one in (await client.list_prompts()).prompts] == ["analyse_data", "fix_code"]
        assert "create_sandbox" in (await client.read_resource("belljar://guide")).contents[0].text
        prompt = await client.get_prompt("fix_code", {"code": "x = 1"})
        assert "<code>\nx = 1\n</code>" in prompt.messages[0].content.text
        with pytest.raises(MCPError, match="code is missing"):
            await client.get_prompt("fix_code", {})
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else MODERN)

    with_client(transport, mode, body)


def test_code_and_commands_run_and_failures_are_told(transport, mode):
    async def body(client):
        fine = await client.call_tool("run_code", {"code": "print(6 * 7)", "files": {"a.txt": "x"}})
        assert not fine.is_error and words(fine) == "42"
        assert fine.structured_content["stdout"] == "42\n" and fine.structured_content["status"] == "exited"
        wrong = await client.call_tool("run_code", {"code": "def f():\n    raise ValueError('no')\nf()"})
        assert wrong.is_error and "Traceback" in words(wrong) and "ValueError: no" in words(wrong)
        assert wrong.structured_content["exit_code"] == 1
        shell = await client.call_tool("run_command", {"command": "read x; echo $x $Y; exit 3", "stdin": "in\n", "env": {"Y": "y"}})
        assert shell.is_error and words(shell) == "in y\n[exit code 3]"
        slow = await client.call_tool("run_code", {"code": "while True: pass", "timeout_s": 0.3})
        assert slow.is_error and slow.structured_content["timed_out"] and "wall_time_limit" in words(slow)
        node = await client.call_tool("run_code", {"code": "console.log([1, 2].length)", "language": "node"})
        assert words(node) == "2"

    with_client(transport, mode, body)


def test_mistakes_name_the_field(transport, mode):
    async def body(client):
        for tool, arguments, field in [
            ("run_code", {}, "code"),
            ("run_code", {"code": 1}, "code"),
            ("run_code", {"code": "x", "colour": "red"}, "colour"),
            ("run_code", {"code": "x", "timeout_s": -1}, "timeout_s"),
            ("run_code", {"code": "x", "memory_mb": 1 << 60}, "memory_mb"),
            ("run_code", {"code": "x", "language": "cobol"}, "language"),
            ("run_code", {"code": "x", "files": {"/../../etc/x": "y"}}, "files"),
            ("run_code", {"code": "x", "sandbox": "never-made"}, "create_sandbox"),
            ("run_command", {"command": "x", "cwd": "/"}, "cwd"),
            ("create_sandbox", {"name": "Not A Name"}, "name"),
            ("read_file", {"sandbox": "../../runs", "path": "x"}, "create_sandbox"),
            ("write_file", {"sandbox": "x", "path": "y", "content": "?", "encoding": "base64"}, "content"),
            ("explain_block", {"execution_id": "nobody"}, "recorded"),
        ]:
            wrong = await client.call_tool(tool, arguments)
            assert wrong.is_error and field in words(wrong), (tool, arguments, words(wrong))
        with pytest.raises(MCPError, match="no tool is called"):
            await client.call_tool("rm_rf", {})
        assert not (await client.call_tool("list_sandboxes", {})).is_error

    with_client(transport, mode, body)


def test_sandbox_keeps_files_variables_and_points(transport, mode):
    async def body(client):
        made = await client.call_tool("create_sandbox", {"memory_mb": 256, "ttl_s": 3600})
        name = made.structured_content["sandbox"]
        assert made.structured_content["expires_at"]
        call = lambda tool, **arguments: client.call_tool(tool, {"sandbox": name, **arguments})
        try:
            assert not (await call("run_code", code="x = 6", files={"in.txt": "given"})).is_error
            shown = await call("run_code", code="print(open('in.txt').read())\nx * 7")
            assert words(shown) == "given\n[value] 42" and shown.structured_content["value"] == "42"
            wrong = await call("run_code", code="1 / 0")
            assert wrong.is_error and "ZeroDivisionError" in words(wrong)
            await call("write_file", path="dir/a.txt", content="one\n")
            await call("write_file", path="dir/a.txt", content="two\n", append=True)
            assert words(await call("read_file", path="dir/a.txt")) == "one\ntwo\n"
            part = await call("read_file", path="/workspace/dir/a.txt", offset=4, limit=2)
            assert part.structured_content["text"] == "tw" and part.structured_content["truncated"]
            listed = await call("list_files")
            assert [one["name"] for one in listed.structured_content["entries"]] == ["dir", "in.txt"]
            resource = await client.read_resource(f"sandbox://{name}/files/workspace/dir/a.txt")
            assert resource.contents[0].text == "one\ntwo\n"
            tag = (await call("snapshot_sandbox")).structured_content["tag"]
            assert words(await call("run_command", command="pwd", cwd="/tmp")) == "/tmp"
            await call("run_command", command="rm -r /workspace/dir")
            assert (await call("read_file", path="dir/a.txt")).is_error
            assert not (await call("rollback_sandbox", tag=tag)).is_error
            assert words(await call("read_file", path="dir/a.txt")) == "one\ntwo\n"
            found = (await client.call_tool("list_sandboxes", {})).structured_content["sandboxes"]
            assert name in [one["sandbox"] for one in found]
        finally:
            assert not (await call("remove_sandbox")).is_error
        gone = await call("run_code", code="x")
        assert gone.is_error and "create_sandbox" in words(gone)

    with_client(transport, mode, body)


def test_pictures_are_pictures(transport, mode):
    code = f"class Picture:\n    def _repr_png_(self):\n        return {PIXEL!r}\nPicture()"

    async def body(client):
        name = (await client.call_tool("create_sandbox", {})).structured_content["sandbox"]
        try:
            shown = await client.call_tool("run_code", {"sandbox": name, "code": code})
            encoded = base64.b64encode(PIXEL).decode()
            written = {"sandbox": name, "path": "p.png", "content": encoded, "encoding": "base64"}
            assert not (await client.call_tool("write_file", written)).is_error
            read = await client.call_tool("read_file", {"sandbox": name, "path": "p.png"})
            for result in (shown, read):
                (picture,) = [block for block in result.content if block.type == "image"]
                assert picture.mime_type == "image/png" and base64.b64decode(picture.data) == PIXEL
            await client.call_tool("write_file", {**written, "path": "raw", "content": "//8A"})
            raw = await client.call_tool("read_file", {"sandbox": name, "path": "raw"})
            (blob,) = [block for block in raw.content if block.type == "resource"]
            assert base64.b64decode(blob.resource.blob) == b"\xff\xff\x00"
        finally:
            await client.call_tool("remove_sandbox", {"sandbox": name})

    with_client(transport, mode, body)


def test_progress_comes_from_output(transport, mode):
    code = "import time\nfor n in range(6):\n    print('step', n, flush=True)\n    time.sleep(0.15)"
    seen = []

    async def told(progress, total, message):
        seen.append((progress, message))

    async def body(client):
        result = await client.call_tool("run_code", {"code": code}, progress_callback=told)
        assert not result.is_error
        assert len(seen) >= 2 and all(message.startswith("step") for _, message in seen), seen
        assert any(message in ("step 1", "step 2", "step 3", "step 4") for _, message in seen), seen
        assert [progress for progress, _ in seen] == sorted({progress for progress, _ in seen})

    with_client(transport, mode, body)


def test_cancelled_call_ends_what_it_had_started(transport, mode):
    async def body(client):
        name = (await client.call_tool("create_sandbox", {})).structured_content["sandbox"]
        try:
            beat = {"sandbox": name, "command": "while :; do date +%N > beat; sleep 0.02; done", "timeout_s": 100}
            running = asyncio.create_task(client.call_tool("run_command", beat))
            look = {"sandbox": name, "command": "cat beat; sleep 0.3; cat beat"}

            async def beats():
                told = (await client.call_tool("run_command", look)).structured_content["stdout"].split()
                return len(told) == 2 and told[0] != told[1]

            while not await beats():
                assert not running.done()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while await beats():
                pass
        finally:
            await client.call_tool("remove_sandbox", {"sandbox": name})

    with_client(transport, mode, body)


def test_tests_are_graded_and_refusals_explained(transport, mode):
    async def body(client):
        cases = [{"name": "small", "input_args": [1, 2], "expected_output": 3}, {"name": "none", "input_args": [0, 0], "expected_output": None}]
        graded = await client.call_tool("test_code", {"code": "def add(a, b):\n    return a + b", "cases": cases})
        assert not graded.is_error and graded.structured_content["score"] == 0.5
        assert [one["passed"] for one in graded.structured_content["cases"]] == [True, False]
        assert words(graded).startswith("1 of 2 cases passed\nnone: wrong_answer")
        tried = await client.call_tool("run_code", {"code": "import os\nos.chroot('/tmp')"})
        assert tried.is_error and "chroot" in tried.structured_content["refused"][0]["what"]
        explained = await client.call_tool("explain_block", {"execution_id": tried.structured_content["execution_id"]})
        assert not explained.is_error and "chroot" in words(explained)

    with_client(transport, mode, body)


def test_environment_of_the_launcher_is_not_seen_inside(transport):
    look = (
        "import os\n"
        "print(dict(os.environ))\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        print(open(f'/proc/{pid}/environ').read())\n"
        "    except OSError as error:\n"
        "        print(pid, error.strerror)\n"
    )
    # The control: a program that is started outside sees it.
    outside = subprocess.run([sys.executable, "-c", look], env={**os.environ, "LAUNCHER_SECRET": SECRET}, stdout=-1, text=True)
    assert SECRET in outside.stdout

    async def body(client):
        name = (await client.call_tool("create_sandbox", {})).structured_content["sandbox"]
        try:
            for where in ({}, {"sandbox": name}):
                inside = await client.call_tool("run_code", {"code": look, **where})
                assert not inside.is_error and "PATH" in words(inside) and SECRET not in words(inside)
                command = await client.call_tool("run_command", {"command": "env; cat /proc/*/environ 2>&1", **where})
                assert "PATH" in words(command) and SECRET not in words(command)
        finally:
            await client.call_tool("remove_sandbox", {"sandbox": name})

    with_client(transport, "legacy", body)


INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip


def test_pages_and_strangers_are_refused_over_http(server):
    url = f"{server[1]}/mcp"
    accept = {"Accept": "application/json, text/event-stream"}
    key = {"Authorization": f"Bearer {TOKEN}", **accept}
    with httpx2.Client(timeout=DEADLINE_S) as http:
        assert http.post(url, json=INITIALIZE, headers=key).status_code == 200  # the control
        assert http.post(url, json=INITIALIZE, headers=accept).status_code == 401
        for origin in ("https://evil.example", "http://localhost:3000", "null", "http://127.0.0.1"):
            answer = http.post(url, json=INITIALIZE, headers={**key, "Origin": origin})
            assert answer.status_code == 403, origin
        assert http.post(url, json=INITIALIZE, headers={**key, "Host": "evil.example"}).status_code == 403
        for body in (b"", b"{", b"[]", b'{"jsonrpc": "1.0"}', b"[" * 100_000, b"\xff\xfe"):
            answer = http.post(url, content=body, headers={**key, "Content-Type": "application/json"})
            assert 400 <= answer.status_code < 500, (body[:20], answer.status_code, answer.text)
        large = httpx2.post(url, content=b" " * (17 << 20), headers={**key, "Content-Type": "application/json"})
        assert large.status_code == 413
        stale = http.post(url, json={**INITIALIZE, "method": "tools/list", "params": {}}, headers={**key, "Mcp-Session-Id": "x"})
        assert stale.status_code in (404, 401), stale.status_code
        assert http.post(url, json=INITIALIZE, headers=key).status_code == 200


def test_standard_output_holds_nothing_but_messages_and_the_end_of_input_is_the_end(tmp_path):
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run_code", "arguments": {"code": "print(1)"}}}
    environment = {**os.environ, "BELLJAR_SOCKET": str(tmp_path / "b.sock"), "BELLJAR_STATE": str(tmp_path / "state")}
    with subprocess.Popen([BELLJAR, "mcp"], env=environment, stdin=-1, stdout=-1, text=True) as process:
        say = lambda message: (process.stdin.write(json.dumps(message) + "\n"), process.stdin.flush())
        say(INITIALIZE)
        assert json.loads(process.stdout.readline())["result"]["protocolVersion"] == "2025-11-25"
        say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        say(call)
        answer = json.loads(process.stdout.readline())
        assert answer["id"] == 2 and answer["result"]["structuredContent"]["stdout"] == "1\n"
        assert (tmp_path / "b.sock").exists()
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(DEADLINE_S) == 0
    assert not (tmp_path / "b.sock").exists()


#: As hosts on a desktop introduce themselves.
HOSTS = [
    ("claude-ai", "2025-06-18", {}),
    ("cursor-vscode", "2025-06-18", {"tools": True, "prompts": True, "resources": True, "logging": False, "elicitation": {}, "roots": {"listChanged": False}}),
    ("Visual Studio Code", "2025-11-25", {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}}),
]  # fmt: skip


@pytest.mark.parametrize(("host", "revision", "capabilities"), HOSTS)
def test_desktop_hosts_start_it_at_the_root_with_nearly_nothing(host, revision, capabilities, tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "BELLJAR_SOCKET": str(tmp_path / "b.sock"), "BELLJAR_STATE": str(tmp_path / "state")}
    with subprocess.Popen([BELLJAR, "mcp"], env=environment, cwd="/", stdin=-1, stdout=-1, text=True) as process:
        def ask(number, method, params):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert answer["id"] == number, answer
            return answer["result"]

        hello = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": {"name": host, "version": "1.0.0"}}
        assert ask(0, "initialize", hello)["protocolVersion"] == revision
        process.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        # All that is listed at the start, asked for or not.
        assert [tool["name"] for tool in ask(1, "tools/list", {})["tools"]] == TOOLS
        assert ask(2, "prompts/list", {})["prompts"] and ask(3, "resources/list", {})["resources"]
        assert "resourceTemplates" in ask(4, "resources/templates/list", {})
        failed = ask(5, "tools/call", {"name": "run_code", "arguments": {"code": "print(6*7)\n1/0"}})
        assert failed["isError"] and "42" in failed["content"][0]["text"] and "ZeroDivisionError" in failed["content"][0]["text"]
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def test_messages_beside_the_usual_ones_are_answered_and_break_nothing(tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "BELLJAR_SOCKET": str(tmp_path / "b.sock"), "BELLJAR_STATE": str(tmp_path / "state")}
    with subprocess.Popen([BELLJAR, "mcp"], env=environment, cwd="/", stdin=-1, stdout=-1, text=True) as process:
        def say(message):
            process.stdin.write((message if isinstance(message, str) else json.dumps({"jsonrpc": "2.0", **message})) + "\n")
            process.stdin.flush()

        def ask(number, method, params=None):
            say({"id": number, "method": method, **({} if params is None else {"params": params})})
            answer = json.loads(process.stdout.readline())
            assert answer["id"] == number, answer
            return answer.get("result", answer.get("error"))

        assert "result" not in ask(0, "initialize", INITIALIZE["params"])
        # Before it was told that the client is ready, with a name for a number, and without parameters.
        assert ask("early", "ping") == {} and ask(1, "ping", {}) == {}
        say({"method": "notifications/initialized"})
        assert ask(2, "logging/setLevel", {"level": "info"})["code"] == -32601
        assert ask(3, "what/is/this", {"a": 1})["code"] == -32601
        for method in ("roots/list_changed", "cancelled", "what/is/this"):
            say({"method": f"notifications/{method}", "params": {"requestId": 99}})
        for number, method in enumerate(("tools", "prompts", "resources", "resources/templates"), 4):
            refused = ask(number, f"{method}/list", {"cursor": "bmV4dA"})
            assert refused["code"] == -32602 and "bmV4dA" in refused["message"], refused
        assert ask(8, "resources/subscribe", {"uri": "belljar://guide"})["code"] == -32601
        assert ask(9, "resources/read", {"uri": "file:///etc/passwd"})["code"] == -32002
        assert ask(10, "tools/call", {"name": "rm", "arguments": {}})["code"] == -32602
        say("no message at all")
        say("")
        assert [tool["name"] for tool in ask(11, "tools/list")["tools"]] == TOOLS
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def test_server_that_was_named_and_is_not_there_is_told(tmp_path):
    async def body(client):
        wrong = await client.call_tool("list_sandboxes", {})
        assert wrong.is_error and "cannot reach the server" in words(wrong)

    command = StdioServerParameters(command=BELLJAR, args=["mcp", "--server", str(tmp_path / "none.sock")])
    with_client(lambda: command, "auto", body)
