"""Evolving programs: with a function of the caller, or followed on the server."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Mapping, Optional, Sequence, Union

from ..models import Attempt, Evolution, EvolutionStep
from ._transport import call_back

if TYPE_CHECKING:
    from .client import AsyncClient

Propose = Callable[[Attempt], Union[str, Awaitable[str]]]


class Loop:
    """The best so far is shown to the caller's function, and what it answers is graded."""

    def __init__(
        self,
        client: AsyncClient,
        prompt: str,
        cases: Sequence[Mapping[str, Any]],
        propose: Propose,
        hidden: Optional[Sequence[Mapping[str, Any]]],
        func_name: Optional[str],
        language: Optional[str],
        on_step: Optional[Callable[[Any], Any]],
    ) -> None:
        self._client = client
        self._prompt = prompt
        self._cases = cases
        self._propose = propose
        self._hidden = hidden
        self._func_name = func_name
        self._language = language
        self._on_step = on_step
        self._steps: List[EvolutionStep] = []
        self._best: Optional[EvolutionStep] = None

    async def run(self, program: Optional[str], max_iterations: int, target_score: float) -> Evolution:
        if program is not None:
            await self._grade("0.0", program)
        iteration = 0
        while iteration < max_iterations and not self._reached(target_score):
            iteration += 1
            await self._grade(f"{iteration}.0", await self._ask(iteration))
        reached = self._reached(target_score)
        return Evolution(
            best_code=self._best.code if self._best else None,
            best_score=self._best.score if self._best else None,
            target_reached=reached,
            iterations=iteration,
            end="target" if reached else "iterations",
            steps=self._steps,
        )

    def _reached(self, target: float) -> bool:
        return self._best is not None and self._best.score is not None and self._best.score >= target

    async def _ask(self, iteration: int) -> str:
        best = self._best
        attempt = Attempt(
            prompt=self._prompt,
            iteration=iteration,
            code=best.code if best else None,
            score=best.score if best else None,
            feedback=best.feedback if best else "",
            last=self._steps[-1] if self._steps else None,
        )
        answer = self._propose(attempt)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, str):
            raise TypeError(f"propose answered {answer!r}; it must answer with code, as text")
        return answer

    async def _grade(self, step: str, code: str) -> None:
        grade = await self._client.test(
            code, self._cases, hidden=self._hidden, func_name=self._func_name, language=self._language
        )
        # What could not be judged is no zero, and is never kept.
        score = grade.score if grade.score_trustworthy else None
        best = self._best.score if self._best else None
        accepted = score is not None and (best is None or score > best)
        done = EvolutionStep(step=step, code=code, score=score, accepted=accepted, feedback=grade.feedback)
        self._steps.append(done)
        if accepted:
            self._best = done
        await call_back(self._on_step, done)


class Told:
    """What the lines of an evolution of the server say."""

    def __init__(self) -> None:
        self._codes: Dict[str, str] = {}
        self._steps: List[EvolutionStep] = []

    def hear(self, line: Mapping[str, Any]) -> Optional[EvolutionStep]:
        if line["type"] == "begun":
            program = line.get("task", {}).get("program")
            if program is not None:
                self._codes["0.0"] = str(program)
        elif line["type"] == "proposed" and line.get("code") is not None:
            self._codes[str(line["step"])] = str(line["code"])
        elif line["type"] == "graded":
            score = line.get("score")
            step = EvolutionStep(
                step=str(line["step"]),
                code=self._codes.get(str(line["step"]), ""),
                score=None if score is None else float(score),
                accepted=bool(line.get("accepted", False)),
                feedback=str(line.get("feedback", "")),
            )
            self._steps.append(step)
            return step
        return None

    def evolution(self, summary: Mapping[str, Any]) -> Evolution:
        best: Mapping[str, Any] = summary.get("best") or {}
        score = best.get("score")
        return Evolution(
            best_code=self._codes.get(str(best.get("step"))),
            best_score=None if score is None else float(score),
            target_reached=bool(summary.get("target_reached", False)),
            iterations=int(summary.get("iterations", 0)),
            end=None if summary.get("end") is None else str(summary["end"]),
            id=str(summary["id"]),
            steps=self._steps,
            raw=summary,
        )
