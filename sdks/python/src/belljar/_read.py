"""From the wire. What a newer server says beyond the fields of a type is in its ``raw``; what an older one leaves out has a
default."""

from __future__ import annotations

import base64
from typing import Any, Optional

from .models import (
    CaseResult,
    Change,
    CodeError,
    CodeResult,
    CommandResult,
    ContextInfo,
    Diff,
    Event,
    ExecInfo,
    FileEvent,
    FileInfo,
    Grade,
    Json,
    Result,
    RichResult,
    SandboxInfo,
    SnapshotInfo,
    Verdict,
)


def _data(value: Any) -> bytes:
    """Output in the two forms that it has on the wire."""
    if isinstance(value, str):
        return value.encode()
    return base64.b64decode(str(value["base64"]))


def _number(value: Any) -> Optional[int]:
    return None if value is None else int(value)


def _optional(value: Any) -> Optional[str]:
    return None if value is None else str(value)


def verdict(raw: Json) -> Verdict:
    return Verdict(kind=str(raw.get("kind", "lost")), raw=raw)


def event(raw: Json) -> Event:
    return Event(
        kind=str(raw.get("kind", "")),
        severity=str(raw.get("severity", "")),
        detail=str(raw.get("detail", "")),
        rule=str(raw.get("rule", "")),
        fix=str(raw.get("fix", "")),
        count=int(raw.get("count", 1)),
        raw=raw,
    )


def result(raw: Json) -> Result:
    return Result(
        stdout=str(raw.get("stdout", "")),
        stderr=str(raw.get("stderr", "")),
        exit_code=_number(raw.get("exit_code")),
        signal=_number(raw.get("signal")),
        verdict=verdict(raw["verdict"]),
        fault_domain=str(raw.get("fault_domain", "")),
        elapsed_ms=float(raw.get("elapsed_ms", 0)),
        cpu_ms=float(raw.get("cpu_ms", 0)),
        memory_peak_bytes=_number(raw.get("memory_peak_bytes")),
        stdout_truncated=bool(raw.get("stdout_truncated", False)),
        stderr_truncated=bool(raw.get("stderr_truncated", False)),
        events=[event(one) for one in raw.get("events", [])],
        risk=str(raw.get("risk", "none")),
        execution_id=str(raw.get("execution_id", "")),
        raw=raw,
    )


def command_result(raw: Json, stdout: Optional[str] = None, stderr: Optional[str] = None) -> CommandResult:
    """Of an exec that has ended; the output of one that was followed comes from who followed it."""
    end: Json = raw.get("end") or {}
    return CommandResult(
        stdout=str(raw.get("stdout", "")) if stdout is None else stdout,
        stderr=str(raw.get("stderr", "")) if stderr is None else stderr,
        exit_code=_number(end.get("exit_code")),
        signal=_number(end.get("signal")),
        verdict=verdict(end.get("verdict") or {}),
        fault_domain=str(end.get("fault_domain", "infrastructure")),
        elapsed_ms=float(end.get("elapsed_ms", 0)),
        stdout_truncated=bool(raw.get("stdout_truncated", False)),
        stderr_truncated=bool(raw.get("stderr_truncated", False)),
        id=str(raw.get("id", "")),
        raw=raw,
    )


def rich_result(raw: Json) -> RichResult:
    return RichResult(main=bool(raw.get("main", False)), data=raw.get("data", {}))


def code_result(raw: Json) -> CodeResult:
    wrong = raw.get("error")
    error = None
    if wrong is not None:
        error = CodeError(
            name=str(wrong.get("name", "")),
            value=str(wrong.get("value", "")),
            traceback=str(wrong.get("traceback", "")),
            line=_number(wrong.get("line")),
        )
    return CodeResult(
        stdout=str(raw.get("stdout", "")),
        stderr=str(raw.get("stderr", "")),
        results=[rich_result(one) for one in raw.get("results", [])],
        error=error,
        exit_code=_number(raw.get("exit_code")),
        elapsed_ms=float(raw.get("elapsed_ms", 0)),
        context=str(raw.get("context", "")),
        count=int(raw.get("count", 0)),
        restarted=bool(raw.get("restarted", False)),
        stdout_truncated=bool(raw.get("stdout_truncated", False)),
        stderr_truncated=bool(raw.get("stderr_truncated", False)),
        ok=bool(raw.get("ok", False)),
        raw=raw,
    )


def sandbox_info(raw: Json) -> SandboxInfo:
    return SandboxInfo(
        id=str(raw["id"]),
        name=str(raw["name"]),
        state=str(raw["state"]),
        level=str(raw.get("level", "")),
        image=str(raw.get("image", "")),
        labels={str(name): str(value) for name, value in raw.get("labels", {}).items()},
        created_at=str(raw.get("created_at", "")),
        expires_at=_optional(raw.get("expires_at")),
        error=_optional(raw.get("error")),
        parent=_optional(raw.get("parent")),
        raw=raw,
    )


def exec_info(raw: Json) -> ExecInfo:
    return ExecInfo(
        id=str(raw["id"]),
        cmd=[str(word) for word in raw.get("cmd", [])],
        state=str(raw["state"]),
        started_at=str(raw.get("started_at", "")),
        raw=raw,
    )


def context_info(raw: Json) -> ContextInfo:
    return ContextInfo(
        id=str(raw["id"]),
        language=str(raw.get("language", "")),
        cwd=str(raw.get("cwd", "")),
        busy=bool(raw.get("busy", False)),
        count=int(raw.get("count", 0)),
    )


def file_info(raw: Json) -> FileInfo:
    return FileInfo(
        name=str(raw.get("name", "")),
        path=str(raw.get("path", "")),
        kind=str(raw.get("kind", "other")),
        bytes=int(raw.get("bytes", 0)),
        mode=int(raw.get("mode", 0)),
        modified_ms=int(raw.get("modified_ms", 0)),
        target=_optional(raw.get("target")),
    )


def file_event(raw: Json) -> FileEvent:
    return FileEvent(
        kind=str(raw.get("kind", "")), path=str(raw.get("path", "")), directory=bool(raw.get("directory", False))
    )


def snapshot_info(raw: Json) -> SnapshotInfo:
    return SnapshotInfo(
        tag=str(raw["tag"]),
        created_at=str(raw.get("created_at", "")),
        automatic=bool(raw.get("automatic", False)),
        bytes=int(raw.get("bytes", 0)),
        files=int(raw.get("files", 0)),
        raw=raw,
    )


def diff(raw: Json) -> Diff:
    changes = [
        Change(
            path=str(one.get("path", "")),
            kind=str(one.get("kind", "")),
            what=str(one.get("what", "")),
            bytes_before=_number(one.get("bytes_before")),
            bytes_after=_number(one.get("bytes_after")),
        )
        for one in raw.get("changes", [])
    ]
    return Diff(changes=changes, truncated=bool(raw.get("truncated", False)))


def case_result(raw: Json) -> CaseResult:
    return CaseResult(
        name=str(raw.get("name", "")),
        passed=bool(raw.get("passed", False)),
        verdict=str(raw.get("verdict", "")),
        detail=str(raw.get("detail", "")),
        duration_ms=float(raw.get("duration_ms", 0)),
        weight=float(raw.get("weight", 1)),
        output=raw.get("output"),
        expected=raw.get("expected"),
        raw=raw,
    )


def grade(raw: Json) -> Grade:
    score = raw.get("score")
    return Grade(
        score=None if score is None else float(score),
        all_passed=bool(raw.get("all_passed", False)),
        score_trustworthy=bool(raw.get("score_trustworthy", False)),
        cases=[case_result(one) for one in raw.get("test_results", [])],
        feedback=str(raw.get("feedback_text", "")),
        elapsed_ms=float(raw.get("elapsed_ms", 0)),
        raw=raw,
    )


def data_of(chunk: Json) -> bytes:
    """The bytes of an event of output, whose text is in `data` or `text`."""
    if "text" in chunk:
        return str(chunk["text"]).encode()
    return _data(chunk["data"])
