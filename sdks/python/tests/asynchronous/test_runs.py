"""One-off runs."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

import belljar
from belljar import AsyncClient

from ..conftest import TOKEN, Server


async def test_code_runs_and_its_output_comes_back(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        result = await client.run("import sys\nprint(6 * 7)\nprint('oops', file=sys.stderr)")
    assert result.ok and result.check() is result
    assert (result.stdout, result.stderr, result.exit_code) == ("42\n", "oops\n", 0)
    assert result.verdict.kind == "exited" and result.fault_domain == "program"
    assert result.raw["receipt"]["level"] == "standard"


async def test_tcp_wants_its_key(server: Server) -> None:
    async with AsyncClient(server.address, api_key=TOKEN) as client:
        assert (await client.run("print(1)")).stdout == "1\n"
    async with AsyncClient(server.address, api_key="not the token at all") as client:
        with pytest.raises(belljar.UnauthorizedError) as caught:
            await client.run("print(1)")
    assert (caught.value.status, caught.value.code) == (401, "unauthorized")


async def test_failing_program_is_a_result_and_check_raises(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        result = await client.run("raise ValueError('no')")
        assert not result.ok and result.exit_code == 1 and "ValueError: no" in result.stderr
        with pytest.raises(belljar.ProgramFailed, match="ValueError: no") as caught:
            result.check()
        assert caught.value.result is result
        with pytest.raises(belljar.ProgramFailed):
            await client.run("exit 3", language="bash", check=True)


async def test_limits_are_met_and_named(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        slow = await client.run("while True: pass", timeout=0.3)
        big = await client.run("x = b'x' * (200 << 20)", memory="32M")
    assert slow.timed_out and slow.fault_domain == "limit" and slow.verdict.kind == "wall_time_limit"
    assert big.verdict.kind == "memory_limit" and not big.ok and not big.timed_out
    assert str(big.verdict) == "memory_limit (limit_bytes 33554432)"


async def test_everything_that_a_run_can_be_given(server: Server) -> None:
    code = "import os, sys\nprint(sys.stdin.read(), os.environ['NAME'], sys.argv[1:], open('a/b.bin', 'rb').read())"
    async with AsyncClient(server.url) as client:
        result = await client.run(
            code,
            stdin="in",
            env={"NAME": "value"},
            args=["x", "y"],
            files={"a/b.bin": b"\xff\x00"},
            level="strict",
            labels={"who": "test"},
            cpu_time=5,
            disk="10M",
            cpus=0.5,
            processes=8,
            limits={"open_files": 64},
            options={"start": "cold"},
        )
        words = await client.run(command=["echo", "a b", "$HOME"])
    assert result.check().stdout == "in value ['x', 'y'] b'\\xff\\x00'\n"
    assert result.raw["receipt"]["level"] == "strict" and result.raw["start"] == "cold"
    assert result.raw["labels"] == {"who": "test"}
    assert words.stdout == "a b $HOME\n"


async def test_bytes_that_are_no_text_lose_nothing(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        result = await client.run("import sys; sys.stdout.buffer.write(bytes(range(256)))")
        text = await client.run("print('\\u2028 \\x85 é')")
    assert result.stdout_bytes == bytes(range(256))
    assert text.stdout == "\u2028 \x85 é\n"


async def test_output_comes_while_the_program_runs(server: Server) -> None:
    code = "import sys\nprint('first', flush=True)\nprint('to stderr', file=sys.stderr, flush=True)\nsys.stdin.read()\n"
    out: List[str] = []
    err: List[str] = []
    async with AsyncClient(server.url) as client:
        result = await client.run(code, on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == ("first\n", "to stderr\n") and result.ok


async def test_events_say_what_was_refused(server: Server) -> None:
    seen: List[belljar.Event] = []
    code = "import os\ntry:\n    os.chroot('/tmp')\nexcept OSError as e:\n    print(e.errno)"
    async with AsyncClient(server.url) as client:
        result = await client.run(code, on_event=seen.append)
    assert result.events and result.events[0].kind == seen[0].kind
    assert "chroot" in result.events[0].detail and result.events[0].fix


async def test_batch_has_the_order_of_its_requests(server: Server) -> None:
    requests = [{"language": "python", "code": f"print({number})"} for number in range(5)]
    requests.insert(2, {"language": "cobol", "code": "x"})
    async with AsyncClient(server.url) as client:
        results = await client.run_batch(requests, parallel=2, budget_wall=60)
    wrong = results.pop(2)
    assert isinstance(wrong, belljar.InvalidRequest) and wrong.field == "language"
    assert [one.stdout for one in results if isinstance(one, belljar.Result)] == [f"{number}\n" for number in range(5)]


async def test_grades_and_their_feedback(server: Server) -> None:
    cases: List[Dict[str, Any]] = [
        {"name": "small", "input_args": (1, 2), "expected_output": 3},
        {"name": "pair", "input_args": ((1, 2), (3,)), "expected_output": (1, 2, 3)},
    ]
    seen: List[str] = []
    async with AsyncClient(server.url) as client:
        good = await client.test("def add(a, b):\n    return a + b", cases, on_case=lambda one: seen.append(one.name))
        bad = await client.test("def add(a, b):\n    return 3", cases, hidden=[{"input_args": [7, 7], "expected_output": 14}])
        with pytest.raises(belljar.ProgramFailed, match="0 of 2 cases passed"):
            await client.test("def add(a, b):\n    return None", cases, check=True)
    assert good.ok and good.score == 1.0 and sorted(seen) == ["pair", "small"]
    assert not bad.ok and bad.score_trustworthy and [one.passed for one in bad.cases] == [True, False, False]
    assert bad.cases[1].verdict == "wrong_answer" and bad.feedback


async def test_evolving_with_a_function_and_with_the_server(server: Server) -> None:
    cases = [{"input_args": [1, 2], "expected_output": 3}, {"input_args": [2, 2], "expected_output": 4}]
    seen: List[belljar.Attempt] = []

    def propose(attempt: belljar.Attempt) -> str:
        seen.append(attempt)
        return "def add(a, b):\n    return " + ("a + b" if attempt.iteration > 1 else "a * b")

    async with AsyncClient(server.url) as client:
        here = await client.evolve("Write add.", cases, propose=propose, func_name="add")
        replay = {"kind": "replay", "answers": ["def add(a, b):\n    return a + b"]}
        there = await client.evolve("Write add.", cases, proposer=replay, func_name="add")
        answers = ["def add(a, b):\n    return a * b", "def add(a, b):\n    return a + b"]
        short = await client.evolve(
            "Write add.", cases, proposer={"kind": "replay", "answers": answers}, func_name="add", max_iterations=1
        )
        steps: List[belljar.EvolutionStep] = []
        assert short.id is not None
        more = await client.resume_evolution(short.id, max_iterations=2, on_step=steps.append)
        with pytest.raises(belljar.InvalidRequest) as caught:
            await client.evolve("Write add.", cases, proposer="nobody", func_name="add")
    assert (here.end, here.best_score, here.iterations) == ("target", 1.0, 2)
    assert seen[1].score == 0.5 and seen[1].feedback and [one.accepted for one in here.steps] == [True, True]
    assert there.target_reached and there.best_code is not None and "a + b" in there.best_code and there.id
    assert not short.target_reached and (more.id, more.end, more.iterations) == (short.id, "target", 2)
    # The server asks no further once the first case has failed (`cascade.smoke`).
    assert [one.score for one in steps] == [0.0, 1.0]
    assert caught.value.field == "proposer.name"
