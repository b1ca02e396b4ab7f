"""What can go wrong, each with a name of its own.

A program that fails is no error: that is a result, and ``result.check()`` makes an exception of it for those who want
one. What is here is raised when there is no result: the request was wrong, was refused, or could not be carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Type, Union

if TYPE_CHECKING:
    from .models import CodeResult, CommandResult, Grade, Result

__all__ = [
    "ApiError",
    "BelljarError",
    "BudgetError",
    "BusyError",
    "CancelledError",
    "ConflictError",
    "ConnectionFailed",
    "ForbiddenError",
    "IdempotencyError",
    "InvalidRequest",
    "NotFoundError",
    "PolicyError",
    "ProgramFailed",
    "RequestTimeout",
    "ScreenedError",
    "ServerFault",
    "ServerNotFound",
    "StreamCut",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
]


class BelljarError(Exception):
    """The base of everything that this package raises."""


class ServerNotFound(BelljarError):
    """No server runs, and none could be started: the message says what was looked for."""


class ConnectionFailed(BelljarError):
    """The server could not be reached, or hung up before it had answered."""


class StreamCut(ConnectionFailed):
    """A stream ended before its last line: what happened after that is not known."""


class ProgramFailed(BelljarError):
    """Raised by ``check()``: the program, the code or the test did not end well. ``result`` says how."""

    def __init__(self, message: str, result: Union[Result, CodeResult, CommandResult, Grade]) -> None:
        super().__init__(message)
        self.result = result


class ApiError(BelljarError):
    """The server answered with a problem (RFC 9457) instead of a result."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        hint: Optional[str] = None,
        field: Optional[str] = None,
        rule: Optional[str] = None,
        retry_after: Optional[float] = None,
        request_id: Optional[str] = None,
        problem: Optional[Mapping[str, Any]] = None,
    ) -> None:
        super().__init__(message)
        #: The HTTP status; 0 where the problem came in a stream without one.
        self.status = status
        #: The stable name of the problem, such as ``spec`` or ``busy``.
        self.code = code
        #: What to do about it, if the server knows.
        self.hint = hint
        #: The field of the request that is wrong.
        self.field = field
        #: The rule of a policy or limit that was broken.
        self.rule = rule
        #: Seconds after which another try is worth it.
        self.retry_after = retry_after
        self.request_id = request_id
        #: Everything that the server said.
        self.problem: Mapping[str, Any] = problem if problem is not None else {}


class InvalidRequest(ApiError, ValueError):
    """A field of the request is wrong; ``field`` names it."""


class UnauthorizedError(ApiError):
    """No key, or one that the server does not know."""


class ForbiddenError(ApiError):
    """The caller may not do this."""


class PolicyError(ForbiddenError):
    """The operator's policy forbids it; ``rule`` names the rule."""


class NotFoundError(ApiError):
    """No sandbox, file, snapshot, context or run is called so."""


class ConflictError(ApiError):
    """It does not fit the state that the sandbox or the file is in; nothing was changed."""


class TooLargeError(ApiError):
    """More than the server takes, or than there is room for."""


class ScreenedError(ApiError):
    """The code was to be refused for what reading it found; ``problem["screening"]`` has it."""


class IdempotencyError(ApiError):
    """The same idempotency key came with another request, or the first one's answer is not there any more; then
    ``problem["executions"]`` names the runs that were begun, as far as they are known."""


class BusyError(ApiError):
    """Everything that may run runs, or a rate limit was met; ``retry_after`` says when to come back."""


class BudgetError(ApiError):
    """The budget of its batch was used up before this could run."""


class UnavailableError(ApiError):
    """This host cannot keep the level that was asked for, or cannot do this at all."""


class CancelledError(ApiError):
    """The server is being stopped, or was."""


class RequestTimeout(ApiError, TimeoutError):
    """The request's body came too slowly."""


class ServerFault(ApiError):
    """The server's own fault; the program is not to be judged by it."""


#: Every code that the server has.
_BY_CODE: Mapping[str, Type[ApiError]] = {
    "spec": InvalidRequest,
    "links": InvalidRequest,
    "name_too_long": InvalidRequest,
    "refused": InvalidRequest,
    "method_not_allowed": InvalidRequest,
    "unsupported_encoding": InvalidRequest,
    "upgrade_required": InvalidRequest,
    "unauthorized": UnauthorizedError,
    "forbidden": ForbiddenError,
    "scope": ForbiddenError,
    "denied": ForbiddenError,
    "read_only": ForbiddenError,
    "policy": PolicyError,
    "not_found": NotFoundError,
    "timeout": RequestTimeout,
    "conflict": ConflictError,
    "exists": ConflictError,
    "not_a_directory": ConflictError,
    "is_a_directory": ConflictError,
    "not_empty": ConflictError,
    "not_regular": ConflictError,
    "paused": ConflictError,
    "changed": ConflictError,
    "other_file_system": ConflictError,
    "idempotency_mismatch": IdempotencyError,
    "idempotency_lost": IdempotencyError,
    "outcome_unknown": IdempotencyError,
    "too_large": TooLargeError,
    "headers_too_large": TooLargeError,
    "disk_full": TooLargeError,
    "screened": ScreenedError,
    "budget": BudgetError,
    "busy": BusyError,
    "rate_limited": BusyError,
    "budget_spent": BusyError,
    "quota": BusyError,
    "overloaded": BusyError,
    "cancelled": CancelledError,
    "draining": CancelledError,
    "not_implemented": UnavailableError,
    "unavailable": UnavailableError,
    "idempotency_unavailable": ServerFault,
    "setup": ServerFault,
    "not_verified": ServerFault,
    "backend": ServerFault,
    "lost": ServerFault,
    "audit": ServerFault,
    "kernel": ServerFault,
    "agent": ServerFault,
    "ours": ServerFault,
}

#: For codes of a newer server.
_BY_STATUS: Mapping[int, Type[ApiError]] = {
    400: InvalidRequest,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: RequestTimeout,
    409: ConflictError,
    410: NotFoundError,
    413: TooLargeError,
    429: BusyError,
    507: TooLargeError,
}


def from_problem(status: int, problem: Mapping[str, Any], retry_after: Optional[float] = None) -> ApiError:
    """The error that a problem stands for: by its code, else by its status."""
    code = str(problem.get("code") or problem.get("kind") or "")
    status = int(problem.get("status") or status)
    detail = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    hint = problem.get("hint") or None
    if hint is None and ". hint: " in detail:
        hint = detail.rsplit(". hint: ", 1)[1]
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = ServerFault if status >= 500 else ApiError
    if kind is ForbiddenError and problem.get("rule"):
        kind = PolicyError
    seconds = problem.get("retry_after_s", retry_after)
    return kind(
        detail,
        status=status,
        code=code,
        hint=None if hint is None else str(hint),
        field=_text(problem.get("field")),
        rule=_text(problem.get("rule")),
        retry_after=None if seconds is None else float(seconds),
        request_id=_text(problem.get("request_id")),
        problem=problem,
    )


def _text(value: Any) -> Optional[str]:
    return None if value is None else str(value)
