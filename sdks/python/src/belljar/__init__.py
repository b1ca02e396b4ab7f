"""Belljar runs code that AI agents write, where it can do no harm, and tells the truth about what happened.

    >>> import belljar
    >>> belljar.run("print(6 * 7)").stdout
    '42\\n'

With nothing set it finds the local server of this user, or starts one. ``Sandbox`` and ``Client`` are synchronous;
``AsyncSandbox``, ``AsyncClient`` and the functions of ``belljar.aio`` are their asynchronous twins.
"""

from . import aio
from ._async.client import AsyncClient
from ._async.commands import AsyncCommand
from ._async.sandbox import AsyncSandbox
from ._shortcuts import evolve, run, run_batch, stop_server, stream, test
from ._sync.client import Client
from ._sync.commands import Command
from ._sync.sandbox import Sandbox
from ._version import __version__
from .errors import (
    ApiError,
    BelljarError,
    BudgetError,
    BusyError,
    CancelledError,
    ConflictError,
    ConnectionFailed,
    ForbiddenError,
    IdempotencyError,
    InvalidRequest,
    NotFoundError,
    PolicyError,
    ProgramFailed,
    RequestTimeout,
    ScreenedError,
    ServerFault,
    ServerNotFound,
    StreamCut,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from .models import (
    Attempt,
    CaseResult,
    Change,
    CodeError,
    CodeResult,
    CommandResult,
    ContextInfo,
    Diff,
    Event,
    Evolution,
    EvolutionStep,
    ExecInfo,
    FileEvent,
    FileInfo,
    Grade,
    Output,
    Result,
    RichResult,
    SandboxInfo,
    SnapshotInfo,
    Verdict,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncCommand",
    "AsyncSandbox",
    "Attempt",
    "BelljarError",
    "BudgetError",
    "BusyError",
    "CancelledError",
    "CaseResult",
    "Change",
    "Client",
    "CodeError",
    "CodeResult",
    "Command",
    "CommandResult",
    "ConflictError",
    "ConnectionFailed",
    "ContextInfo",
    "Diff",
    "Event",
    "Evolution",
    "EvolutionStep",
    "ExecInfo",
    "FileEvent",
    "FileInfo",
    "ForbiddenError",
    "Grade",
    "IdempotencyError",
    "InvalidRequest",
    "NotFoundError",
    "Output",
    "PolicyError",
    "ProgramFailed",
    "RequestTimeout",
    "Result",
    "RichResult",
    "Sandbox",
    "SandboxInfo",
    "ScreenedError",
    "ServerFault",
    "ServerNotFound",
    "SnapshotInfo",
    "StreamCut",
    "TooLargeError",
    "UnauthorizedError",
    "UnavailableError",
    "Verdict",
    "__version__",
    "aio",
    "evolve",
    "run",
    "run_batch",
    "stop_server",
    "stream",
    "test",
]
