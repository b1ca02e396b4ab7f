"""What is tried again, when, and how often. No input, no output: both kinds of client ask here."""

from __future__ import annotations

import json
import random
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional
from urllib.parse import quote

from . import _read
from .errors import ApiError, ConnectionFailed, StreamCut, from_problem

#: Seconds before the first further try; each next pause is twice as long, up to the longest.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
#: How long whoever leaves waits until what they began has ended, and how often they look whether it has begun.
END_WITHIN_S = 5.0
END_TRIES = 3
END_PAUSE_S = 0.05
#: A server that asks for more patience than this is not waited for.
MOST_PATIENCE_S = 30.0
#: The longest line of a stream: an outcome with all the output that may be kept.
MAX_LINE_BYTES = 1 << 30

#: What the server carries out once for each key, also when it was killed between: a test compares with its document.
_ONCE = re.compile(
    r"/v1/(runs|batches|grades|evolutions|evolutions/[^/]+/resume|sandboxes|sandboxes/run_(python|shell)"
    r"|sandboxes/[^/]+/(code|contexts|exec|fork|promote|redo|rollback|shell|snapshots|undo|workspace/discard))"
)

#: The last line of a stream.
_LAST = ("outcome", "grade", "ended")

NDJSON = "application/x-ndjson"
JSON = "application/json"


@dataclass
class Call:
    """One request as it was meant, however often it is sent."""

    method: str
    path: str
    json: Any = None
    accept: str = JSON
    #: Seconds without a byte after which the server is given up.
    patience: float = 60.0
    headers: Dict[str, str] = field(default_factory=dict)
    #: Whether anything was sent, whether an answer has begun, and whether all of it came.
    sent: bool = False
    begun: bool = False
    done: bool = False

    def __post_init__(self) -> None:
        self.headers["Accept"] = self.accept
        if self.method == "POST":
            # The same for each try: a server that knows the key does it once.
            self.headers["Idempotency-Key"] = uuid.uuid4().hex

    @property
    def keyed(self) -> bool:
        """Whether the server carries it out once, and gives the same answer again."""
        return self.method == "POST" and _ONCE.fullmatch(self.path.split("?")[0]) is not None

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice does no more than sending it once."""
        return self.method != "POST" or self.keyed

    @property
    def ending(self) -> str:
        """Where it is ended: with a key it goes on without whoever asked."""
        return f"/v1/requests/{quote(self.headers['Idempotency-Key'], safe='')}"

    def hear(self, line: Mapping[str, Any]) -> None:
        # An evolution that was resumed has gone on after an end.
        self.done = (self.done or line.get("type") in _LAST) and line.get("type") != "resumed"


def pause(attempt: int, most: int, error: ApiError, headers: Mapping[str, str]) -> Optional[float]:
    """Seconds to wait before this refusal is worth another try; None if it is not."""
    if attempt >= most:
        return None
    asked = headers.get("should-retry", "").lower()
    if asked == "false":
        return None
    # Of these nothing was begun. A level that this host cannot keep is no more there in a second.
    if asked != "true" and not (error.status in (429, 502, 503, 504) and error.code not in ("unavailable", "budget_spent")):
        return None
    told = error.retry_after
    if told is not None:
        return told if told <= MOST_PATIENCE_S else None
    return backoff(attempt)


def backoff(attempt: int) -> float:
    """Seconds before a further try, never the same for two clients that failed together."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt) * random.uniform(0.5, 1.0))


def problem(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error that an answer tells of."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        text = body[:500].decode("utf-8", "replace").strip()
        found = {"status": status, "detail": f"the server answered {status}: {text}" if text else None}
    after = headers.get("retry-after")
    seconds = float(after) if after is not None and after.isdigit() else None
    if "request_id" not in found and headers.get("x-request-id"):
        found["request_id"] = headers["x-request-id"]
    return from_problem(status, found, seconds)


def document(body: bytes) -> Any:
    """The JSON of an answer."""
    try:
        return json.loads(body) if body else None
    except ValueError as error:
        raise ConnectionFailed(f"the server's answer is no JSON: {error}") from error


class Lines:
    """Lines of JSON out of pieces of bytes. Split at line feeds only: JSON may hold every other kind of line end."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> List[Dict[str, Any]]:
        self._held += piece
        if b"\n" not in piece:
            if len(self._held) > MAX_LINE_BYTES:
                raise StreamCut(f"the server sent a line of more than {MAX_LINE_BYTES} bytes")
            return []
        *whole, rest = self._held.split(b"\n")
        self._held = bytearray(rest)
        found = []
        for line in whole:
            if line:
                one = document(bytes(line))
                if one.get("type") == "error":
                    raise from_problem(0, one)
                found.append(one)
        return found


class Kept:
    """What a command that is followed wrote, as far as it is kept."""

    #: Of each stream.
    MOST_BYTES = 16 << 20

    def __init__(self) -> None:
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._cut = {"stdout": False, "stderr": False}

    def add(self, stream: str, data: bytes) -> None:
        held = self._streams[stream]
        room = self.MOST_BYTES - len(held)
        held += data[:room]
        self._cut[stream] |= len(data) > room

    def lose(self, stream: str) -> None:
        self._cut[stream] = True

    def result(self, raw: Mapping[str, Any]) -> Any:
        text = {name: bytes(held).decode("utf-8", "replace") for name, held in self._streams.items()}
        told = dict(raw, stdout_truncated=self._cut["stdout"], stderr_truncated=self._cut["stderr"])
        return _read.command_result(told, text["stdout"], text["stderr"])
