"""What comes back: plain values, typed, with everything that the server said in ``raw``."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional

from .errors import ProgramFailed

__all__ = [
    "Attempt",
    "CaseResult",
    "Change",
    "CodeError",
    "CodeResult",
    "CommandResult",
    "ContextInfo",
    "Diff",
    "Event",
    "Evolution",
    "EvolutionStep",
    "ExecInfo",
    "FileEvent",
    "FileInfo",
    "Grade",
    "Output",
    "Result",
    "RichResult",
    "SandboxInfo",
    "SnapshotInfo",
    "Verdict",
]

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """How a program ended, decided by evidence and never by what an exit code looks like."""

    #: ``exited``, ``signaled``, ``wall_time_limit``, ``cpu_time_limit``, ``memory_limit``, ``output_limit``,
    #: ``disk_limit``, ``syscall_denied`` or ``start_failed``.
    kind: str
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def timed_out(self) -> bool:
        """Whether a time limit ended it."""
        return self.kind in ("wall_time_limit", "cpu_time_limit")

    def __str__(self) -> str:
        more = ", ".join(f"{name} {value}" for name, value in self.raw.items() if name != "kind")
        return f"{self.kind} ({more})" if more else self.kind


@dataclass(frozen=True)
class Event:
    """Something that was tried and refused, or a limit that was met."""

    kind: str
    severity: str
    detail: str
    #: The rule that refused it, and what would allow it.
    rule: str
    fix: str
    count: int = 1
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Output:
    """A piece of output as it came."""

    #: ``stdout`` or ``stderr``.
    stream: str
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Result:
    """What a run came to. However the program ended, this is a value: see ``ok``, or call ``check()``."""

    stdout: str
    stderr: str
    exit_code: Optional[int]
    signal: Optional[int]
    verdict: Verdict
    #: ``program``, ``limit``, ``policy``, or ``infrastructure``: then the program is not to be judged by this run.
    fault_domain: str
    elapsed_ms: float
    cpu_ms: float
    memory_peak_bytes: Optional[int]
    stdout_truncated: bool
    stderr_truncated: bool
    events: List[Event]
    #: ``none``, ``low``, ``medium``, ``high`` or ``critical``: what the gravest event weighs.
    risk: str
    execution_id: str
    #: The Outcome as the server told it, with evidence, limits and the receipt of what was enforced.
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the program ran to its own end and said that all is well."""
        return self.verdict.kind == "exited" and self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.verdict.timed_out

    @property
    def truncated(self) -> bool:
        """Whether some of the output was not kept."""
        return self.stdout_truncated or self.stderr_truncated

    @property
    def stdout_bytes(self) -> bytes:
        """What was kept of its output, also where that is no text."""
        return _kept(self.raw, "stdout")

    @property
    def stderr_bytes(self) -> bytes:
        return _kept(self.raw, "stderr")

    def check(self) -> Result:
        """Itself if all is well, else :class:`~belljar.ProgramFailed`."""
        if self.ok:
            return self
        raise ProgramFailed(_failed(self.verdict, self.stderr), self)


@dataclass(frozen=True)
class CommandResult:
    """What a command in a sandbox came to."""

    stdout: str
    stderr: str
    exit_code: Optional[int]
    signal: Optional[int]
    verdict: Verdict
    fault_domain: str
    elapsed_ms: float
    stdout_truncated: bool
    stderr_truncated: bool
    id: str
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.verdict.kind == "exited" and self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.verdict.timed_out

    @property
    def truncated(self) -> bool:
        return self.stdout_truncated or self.stderr_truncated

    def check(self) -> CommandResult:
        """Itself if all is well, else :class:`~belljar.ProgramFailed`."""
        if self.ok:
            return self
        raise ProgramFailed(_failed(self.verdict, self.stderr), self)


@dataclass(frozen=True)
class RichResult:
    """One value in every form that it has, by MIME type; pictures are base64 in ``data``."""

    #: Whether it is the value of the last expression, not something displayed on the way.
    main: bool
    data: Mapping[str, Any]

    @property
    def text(self) -> Optional[str]:
        value = self.data.get("text/plain")
        return None if value is None else str(value)

    @property
    def html(self) -> Optional[str]:
        value = self.data.get("text/html")
        return None if value is None else str(value)

    @property
    def json(self) -> Any:
        return self.data.get("application/json")

    @property
    def png(self) -> Optional[bytes]:
        return self.decoded("image/png")

    @property
    def jpeg(self) -> Optional[bytes]:
        return self.decoded("image/jpeg")

    def decoded(self, mime: str) -> Optional[bytes]:
        """The bytes of a form that is base64, such as ``image/png``."""
        value = self.data.get(mime)
        return None if value is None else base64.b64decode(str(value))


@dataclass(frozen=True)
class CodeError:
    name: str
    value: str
    traceback: str
    line: Optional[int] = None


@dataclass(frozen=True)
class CodeResult:
    """What a piece of code in a context came to."""

    stdout: str
    stderr: str
    results: List[RichResult]
    error: Optional[CodeError]
    exit_code: Optional[int]
    elapsed_ms: float
    context: str
    #: How often this context has run code.
    count: int
    #: The context had died, so nothing of the calls before was there.
    restarted: bool
    stdout_truncated: bool
    stderr_truncated: bool
    #: Whether the code ran to its end without an error.
    ok: bool
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression as text, if there is one."""
        return next((one.text for one in self.results if one.main), None)

    def check(self) -> CodeResult:
        """Itself if all is well, else :class:`~belljar.ProgramFailed`."""
        if self.ok:
            return self
        why = f"{self.error.name}: {self.error.value}" if self.error else "the code did not end well"
        raise ProgramFailed(why, self)


@dataclass(frozen=True)
class SandboxInfo:
    id: str
    name: str
    #: ``created``, ``running``, ``paused``, ``stopped``, ``failed`` or ``removing``.
    state: str
    level: str
    image: str
    labels: Mapping[str, str]
    created_at: str
    expires_at: Optional[str]
    error: Optional[str]
    parent: Optional[str]
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class ExecInfo:
    """A command of a sandbox, while it runs and after."""

    id: str
    cmd: List[str]
    #: ``running``, ``ended`` or ``lost``.
    state: str
    started_at: str
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class ContextInfo:
    id: str
    language: str
    cwd: str
    busy: bool
    count: int


@dataclass(frozen=True)
class FileInfo:
    name: str
    path: str
    #: ``file``, ``directory``, ``symlink`` or ``other``.
    kind: str
    bytes: int
    mode: int
    modified_ms: int
    target: Optional[str] = None

    @property
    def is_dir(self) -> bool:
        return self.kind == "directory"

    @property
    def is_file(self) -> bool:
        return self.kind == "file"


@dataclass(frozen=True)
class FileEvent:
    """Something happened to a file."""

    #: ``created``, ``written``, ``metadata``, ``removed``, ``moved_from``, ``moved_to``, ``overflow`` or ``gone``.
    kind: str
    path: str
    directory: bool


@dataclass(frozen=True)
class SnapshotInfo:
    tag: str
    created_at: str
    automatic: bool
    bytes: int
    files: int
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Change:
    path: str
    #: ``added``, ``modified``, ``metadata`` or ``removed``.
    kind: str
    what: str
    bytes_before: Optional[int]
    bytes_after: Optional[int]


@dataclass(frozen=True)
class Diff:
    changes: List[Change]
    #: There are more changes, which were not looked for.
    truncated: bool


@dataclass(frozen=True)
class CaseResult:
    name: str
    passed: bool
    #: ``passed``, ``wrong_answer``, ``raised``, ``time_limit``, ``infrastructure`` and so on.
    verdict: str
    detail: str
    duration_ms: float
    weight: float
    output: Any = None
    expected: Any = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Grade:
    """What a candidate is worth. A failure of ours is never a zero: see ``score_trustworthy``."""

    #: The passed share of the weight that could be judged; None if none could.
    score: Optional[float]
    all_passed: bool
    score_trustworthy: bool
    cases: List[CaseResult]
    #: What to do next, in words for a prompt.
    feedback: str
    elapsed_ms: float
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether every case passed, and that can be relied on."""
        return self.all_passed and self.score_trustworthy

    def check(self) -> Grade:
        """Itself if every case passed, else :class:`~belljar.ProgramFailed`."""
        if self.ok:
            return self
        passed = sum(1 for one in self.cases if one.passed)
        raise ProgramFailed(f"{passed} of {len(self.cases)} cases passed", self)


@dataclass(frozen=True)
class EvolutionStep:
    """One candidate that was proposed and graded."""

    step: str
    code: str
    score: Optional[float]
    accepted: bool
    feedback: str


@dataclass(frozen=True)
class Attempt:
    """What a function that proposes programs is told."""

    prompt: str
    #: 1 for the first.
    iteration: int
    #: The best program so far, its score, and what was wrong with it.
    code: Optional[str]
    score: Optional[float]
    feedback: str
    #: The candidate before this one, which need not be the best.
    last: Optional[EvolutionStep] = None


@dataclass(frozen=True)
class Evolution:
    """What an evolution has come to."""

    best_code: Optional[str]
    best_score: Optional[float]
    target_reached: bool
    iterations: int
    #: ``target``, ``iterations``, ``seconds``, ``tokens``, ``money``, ``proposer`` …; None while it goes on.
    end: Optional[str]
    #: Of one that the server carries out.
    id: Optional[str] = None
    steps: List[EvolutionStep] = field(default_factory=list)
    raw: Json = field(default_factory=dict, repr=False, compare=False)


def _failed(verdict: Verdict, stderr: str) -> str:
    last = stderr.strip().splitlines()[-1:] or [""]
    return f"{verdict}: {last[0]}" if last[0] else str(verdict)


def _kept(raw: Json, stream: str) -> bytes:
    encoded = raw.get(f"{stream}_base64")
    if encoded is not None:
        return base64.b64decode(str(encoded))
    return str(raw.get(stream, "")).encode()
