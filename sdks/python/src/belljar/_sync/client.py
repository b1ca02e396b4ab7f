# Made by tools/make_sync.py out of src/belljar/_async/client.py. Change that, not this.
"""A client of a server: one-off runs, batches, tests and evolutions. Sandboxes that stay are in ``sandbox.py``."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Type, Union

from .. import _find, _read, _retry, _wire
from .._version import __version__
from ..errors import ApiError, StreamCut, from_problem
from ..models import CaseResult, Event, Evolution, Grade, Output, Result
from . import evolving
from ._transport import Transport, call_back
from .streams import RunStream

#: How long a server may be silent beyond the time that a program has: it may have to wait for its turn.
_TURN_S = 600.0
_USUAL_TIMEOUT_S = 30.0

OnText = Callable[[str], Any]


class Client:
    """Speaks to one server, from any number of threads.

    ``url`` is ``http://…``, ``https://…`` or ``unix:///path``. Without it ``BELLJAR_URL`` says where; without that it is
    the local socket of this user, and if nothing listens there, a server is started that ends with this process.
    """

    def __init__(self, url: Optional[str] = None, *, api_key: Optional[str] = None, max_retries: int = 5) -> None:
        self._transport = Transport(
            _find.place(url, api_key), max_retries=max_retries, user_agent=f"belljar-python/{__version__}"
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Sandboxes stay."""
        self._transport.close()

    def run(
        self,
        code: Optional[str] = None,
        *,
        command: Optional[Sequence[str]] = None,
        language: Optional[str] = None,
        stdin: Optional[_wire.Data] = None,
        files: Optional[Mapping[str, _wire.Data]] = None,
        env: Optional[Mapping[str, str]] = None,
        args: Optional[Sequence[str]] = None,
        timeout: Optional[float] = None,
        cpu_time: Optional[float] = None,
        memory: Optional[_wire.Size] = None,
        disk: Optional[_wire.Size] = None,
        cpus: Optional[float] = None,
        processes: Optional[int] = None,
        limits: Optional[Mapping[str, int]] = None,
        level: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        options: Optional[Mapping[str, Any]] = None,
        on_stdout: Optional[OnText] = None,
        on_stderr: Optional[OnText] = None,
        on_event: Optional[Callable[[Event], Any]] = None,
        check: bool = False,
    ) -> Result:
        """Runs code, or a ``command`` without a shell, in a sandbox made for it, and takes the sandbox away again.

        ``language`` is ``python`` unless told. ``timeout`` and ``cpu_time`` are seconds; ``memory`` and ``disk`` bytes or
        text such as ``"512M"``; ``limits`` and ``options`` are further fields of the request by their own names.
        The callbacks get the output as it comes. A program that fails is a result; ``check=True`` raises instead.
        """
        stream = self.stream(
            code,
            command=command,
            language=language,
            stdin=stdin,
            files=files,
            env=env,
            args=args,
            timeout=timeout,
            cpu_time=cpu_time,
            memory=memory,
            disk=disk,
            cpus=cpus,
            processes=processes,
            limits=limits,
            level=level,
            labels=labels,
            options=options,
        )
        with stream as events:
            for event in events:
                if isinstance(event, Event):
                    call_back(on_event, event)
                else:
                    call_back(on_stdout if event.stream == "stdout" else on_stderr, event.text)
        result = _ended(stream.result)
        return result.check() if check else result

    def stream(
        self,
        code: Optional[str] = None,
        *,
        command: Optional[Sequence[str]] = None,
        language: Optional[str] = None,
        stdin: Optional[_wire.Data] = None,
        files: Optional[Mapping[str, _wire.Data]] = None,
        env: Optional[Mapping[str, str]] = None,
        args: Optional[Sequence[str]] = None,
        timeout: Optional[float] = None,
        cpu_time: Optional[float] = None,
        memory: Optional[_wire.Size] = None,
        disk: Optional[_wire.Size] = None,
        cpus: Optional[float] = None,
        processes: Optional[int] = None,
        limits: Optional[Mapping[str, int]] = None,
        level: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        options: Optional[Mapping[str, Any]] = None,
    ) -> RunStream:
        """The same as :meth:`run`, as an iterator under ``with`` of :class:`~belljar.Output` and
        :class:`~belljar.Event`; ``result`` of it is there at the end. Leaving it early ends the run."""
        if (code is None) == (command is None):
            raise ValueError("give either code or command")
        if code is not None and language is None:
            language = "python"
        request = _wire.run_request(
            code,
            command,
            language=language,
            stdin=stdin,
            files=files,
            env=env,
            args=args,
            level=level,
            labels=labels,
            limits=_wire.limits(timeout, cpu_time, memory, disk, cpus, processes, limits),
            options=options,
        )
        patience = (timeout or _USUAL_TIMEOUT_S) + _TURN_S
        call = _retry.Call("POST", "/v1/runs", request, _retry.NDJSON, patience)
        return RunStream(self._transport.lines(call))

    def run_batch(
        self,
        requests: Sequence[Mapping[str, Any]],
        *,
        parallel: Optional[int] = None,
        budget_cpu: Optional[float] = None,
        budget_wall: Optional[float] = None,
    ) -> List[Union[Result, ApiError]]:
        """Runs many requests (dicts as `POST /v1/runs` takes them) under one budget, in seconds.

        The answers have the order of the requests; one that could not be carried out is its error, not raised.
        """
        body = _wire.given(
            requests=[dict(one) for one in requests],
            parallel=parallel,
            budget_cpu_ms=_wire.milliseconds("budget_cpu", budget_cpu),
            budget_wall_ms=_wire.milliseconds("budget_wall", budget_wall),
        )
        call = _retry.Call("POST", "/v1/batches", body, _retry.NDJSON, (budget_wall or _USUAL_TIMEOUT_S) + _TURN_S)
        found: List[Union[Result, ApiError]] = []
        with self._transport.lines(call) as lines:
            for line in lines:
                wrong = line.get("error")
                found.append(from_problem(0, wrong) if wrong is not None else _read.result(line))
        if len(found) != len(requests):
            raise StreamCut(f"{len(found)} of {len(requests)} results came")
        return found

    def test(
        self,
        code: str,
        cases: Sequence[Mapping[str, Any]],
        *,
        hidden: Optional[Sequence[Mapping[str, Any]]] = None,
        func_name: Optional[str] = None,
        language: Optional[str] = None,
        setup_code: Optional[str] = None,
        timeout: Optional[float] = None,
        memory: Optional[_wire.Size] = None,
        level: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        options: Optional[Mapping[str, Any]] = None,
        on_case: Optional[Callable[[CaseResult], Any]] = None,
        check: bool = False,
    ) -> Grade:
        """Grades a candidate by cases such as ``{"input_args": [1, 2], "expected_output": 3}``.

        What is expected never enters the candidate's sandbox. Tuples, sets, bytes and the like may be in cases as they
        are. ``timeout`` is the seconds of one case.
        """
        request = _wire.given(
            code=code,
            language=language or "python",
            cases=_wire.cases(cases),
            hidden=None if hidden is None else _wire.cases(hidden),
            func_name=func_name,
            setup_code=setup_code,
            limits=_wire.limits(timeout, memory=memory),
            level=level,
            labels=None if labels is None else dict(labels),
        )
        request.update(options or {})
        grade: Optional[Grade] = None
        call = _retry.Call("POST", "/v1/grades", request, _retry.NDJSON, (timeout or _USUAL_TIMEOUT_S) + _TURN_S)
        with self._transport.lines(call) as lines:
            for line in lines:
                if line["type"] == "case":
                    call_back(on_case, _read.case_result(line))
                elif line["type"] == "grade":
                    grade = _read.grade(line)
        if grade is None:
            raise StreamCut("the stream ended before the grade")
        return grade.check() if check else grade

    def evolve(
        self,
        prompt: str,
        cases: Sequence[Mapping[str, Any]],
        *,
        propose: Optional[evolving.Propose] = None,
        proposer: Union[None, str, Mapping[str, Any]] = None,
        program: Optional[str] = None,
        hidden: Optional[Sequence[Mapping[str, Any]]] = None,
        func_name: Optional[str] = None,
        language: Optional[str] = None,
        max_iterations: int = 5,
        target_score: float = 1.0,
        options: Optional[Mapping[str, Any]] = None,
        on_step: Optional[Callable[[Any], Any]] = None,
    ) -> Evolution:
        """Asks for programs, grades each, keeps the best, says what was wrong with it and asks again.

        With ``propose``, a function of yours is asked: it gets an :class:`~belljar.Attempt` and answers with code.
        With ``proposer``, the server asks one that its operator has described, by name, or ``{"kind": "replay",
        "answers": [...]}``; ``options`` are then further fields of the task.
        """
        if (propose is None) == (proposer is None):
            raise ValueError("give either propose (a function) or proposer (one of the server's)")
        if propose is not None:
            loop = evolving.Loop(self, prompt, cases, propose, hidden, func_name, language, on_step)
            return loop.run(program, max_iterations, target_score)
        named: Any = {"kind": "named", "name": proposer} if isinstance(proposer, str) else proposer
        task = _wire.given(
            prompt=prompt,
            cases=_wire.cases(cases),
            hidden=None if hidden is None else _wire.cases(hidden),
            func=func_name,
            language=language,
            program=program,
            proposer=named,
            max_iterations=max_iterations,
            target_score=target_score,
        )
        task.update(options or {})
        begun = self._transport.json(_retry.Call("POST", "/v1/evolutions", task))
        return self.follow_evolution(str(begun["id"]), on_step=on_step)

    def follow_evolution(self, id: str, *, on_step: Optional[Callable[[Any], Any]] = None) -> Evolution:
        """Waits for the end of an evolution of the server; ``on_step`` gets each candidate when it is graded."""
        call = _retry.Call("GET", f"/v1/evolutions/{_wire.segment(id)}/events", None, _retry.NDJSON, 24 * 3600.0)
        told = evolving.Told()
        with self._transport.lines(call) as lines:
            for line in lines:
                step = told.hear(line)
                if step is not None:
                    call_back(on_step, step)
        summary = self._transport.json(_retry.Call("GET", f"/v1/evolutions/{_wire.segment(id)}"))
        return told.evolution(summary)

    def resume_evolution(
        self,
        id: str,
        *,
        max_iterations: Optional[int] = None,
        budget: Optional[Mapping[str, Any]] = None,
        on_step: Optional[Callable[[Any], Any]] = None,
    ) -> Evolution:
        """Goes on with an evolution of the server that ended or was stopped, and waits for its end.

        Numbers count what is done already, and stay as they were when left out; ``on_step`` gets every candidate, from the
        first on.
        """
        asked = _wire.given(max_iterations=max_iterations, budget=budget)
        self._transport.json(_retry.Call("POST", f"/v1/evolutions/{_wire.segment(id)}/resume", asked))
        return self.follow_evolution(id, on_step=on_step)

    def explain(self, execution_id: str) -> Dict[str, Any]:
        """Why a recorded run was refused something, and what would allow it."""
        return self._get(f"/v1/runs/{_wire.segment(execution_id)}/explanation")

    def stats(self) -> Dict[str, Any]:
        """Numbers of all recorded runs, and of the pool."""
        return self._get("/v1/stats")

    def healthy(self) -> bool:
        """Whether the server answers."""
        try:
            return (self._transport.read(_retry.Call("GET", "/healthz"))).startswith(b"ok")
        except ApiError:
            return False

    def _get(self, path: str) -> Dict[str, Any]:
        found: Dict[str, Any] = self._transport.json(_retry.Call("GET", path))
        return found


def _ended(result: Optional[Result]) -> Result:
    if result is None:
        raise StreamCut("the stream ended before the outcome")
    return result


def pieces_of(content: Any) -> Iterator[bytes]:
    """A file's bytes, piece by piece."""
    while True:
        piece = content.read(64 << 10)
        if not piece:
            return
        yield piece if isinstance(piece, bytes) else piece.encode()


__all__ = ["Client", "Output", "pieces_of"]
