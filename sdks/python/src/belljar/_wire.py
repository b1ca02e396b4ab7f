"""What is sent: requests built from arguments, checked here where a mistake can be told sooner and with its Python name."""

from __future__ import annotations

import base64
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import quote

Data = Union[str, bytes]
#: Bytes, or text such as "512M" or "2GiB".
Size = Union[int, str]

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def size(name: str, value: Optional[Size]) -> Optional[int]:
    """A number of bytes."""
    if value is None or isinstance(value, int):
        return value
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise ValueError(f'{name} is {value!r}; it must be a number of bytes, or text such as "512M"')
    return int(found[1]) << _POWERS[found[2].lower()]


def milliseconds(name: str, seconds: Optional[float]) -> Optional[int]:
    """Seconds as they travel."""
    if seconds is None:
        return None
    if not seconds > 0 or seconds == float("inf"):
        raise ValueError(f"{name} is {seconds!r}; it must be a positive number of seconds")
    return max(1, round(seconds * 1000))


def data(value: Data) -> Any:
    """Bytes as they travel: text where they are text."""
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def given(**fields: Any) -> Dict[str, Any]:
    """Those that say something: what is left out takes the server's default."""
    return {name: value for name, value in fields.items() if value is not None}


def limits(
    timeout: Optional[float] = None,
    cpu_time: Optional[float] = None,
    memory: Optional[Size] = None,
    disk: Optional[Size] = None,
    cpus: Optional[float] = None,
    processes: Optional[int] = None,
    more: Optional[Mapping[str, int]] = None,
) -> Optional[Dict[str, Any]]:
    """The limits of a request, if it has any."""
    found = given(
        wall_ms=milliseconds("timeout", timeout),
        cpu_ms=milliseconds("cpu_time", cpu_time),
        memory_bytes=size("memory", memory),
        disk_bytes=size("disk", disk),
        millicpus=None if cpus is None else round(cpus * 1000),
        processes=processes,
    )
    found.update(more or {})
    return found or None


def run_request(
    code: Optional[str],
    command: Optional[Sequence[str]],
    *,
    language: Optional[str],
    stdin: Optional[Data],
    files: Optional[Mapping[str, Data]],
    env: Optional[Mapping[str, str]],
    args: Optional[Sequence[str]],
    level: Optional[str],
    labels: Optional[Mapping[str, str]],
    limits: Optional[Mapping[str, Any]],
    options: Optional[Mapping[str, Any]],
) -> Dict[str, Any]:
    """The body of `POST /v1/runs`."""
    request = given(
        code=code,
        command=None if command is None else words("command", command),
        language=language,
        stdin=None if stdin is None else data(stdin),
        files=None if files is None else {path: data(one) for path, one in files.items()},
        env=None if env is None else dict(env),
        args=None if args is None else words("args", args),
        level=level,
        labels=None if labels is None else dict(labels),
        limits=limits,
    )
    request.update(options or {})
    return request


def words(name: str, value: Sequence[str]) -> List[str]:
    """A list of words; a bare string would be a list of letters."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} is {value!r}; it must be a list of words, such as ['ls', '-l']")
    return list(value)


def segment(text: str) -> str:
    """One segment of a path."""
    if not text or text in (".", ".."):
        raise ValueError(f"{text!r} is no name")
    return quote(text, safe="")


def inside(path: str) -> str:
    """A path inside of a sandbox, in a URL; a relative one is below /workspace."""
    if not path:
        raise ValueError("path is empty")
    absolute = path if path.startswith("/") else f"/workspace/{path}"
    # Dots are the sandbox's business: an HTTP client would resolve them before they are sent.
    parts = [quote(part, safe="").replace(".", "%2E") if part in (".", "..") else quote(part, safe="") for part in absolute.split("/")]
    return "/".join(part for part in parts if part) or "%2E"


def query(**fields: Any) -> str:
    """The words behind the question mark."""
    pairs = [f"{name}={quote(_word(value), safe='')}" for name, value in fields.items() if value is not None and value is not False]
    return "?" + "&".join(pairs) if pairs else ""


def _word(value: Any) -> str:
    return "true" if value is True else str(value)


def cases(found: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Test cases, with Python's own types spelled as the server reads them."""
    values = ("input_args", "input_kwargs", "expected_output")
    made = []
    for index, case in enumerate(found):
        if not isinstance(case, Mapping):
            raise TypeError(f"cases[{index}] is {case!r}; it must be a dict such as {{'input_args': [1, 2], 'expected_output': 3}}")
        one = dict(case)
        for name in values:
            if name in one:
                # The arguments are a list, and their names an object, whatever the caller wrote them as.
                inner = one[name]
                if name == "input_args":
                    one[name] = [value(item) for item in inner]
                elif name == "input_kwargs":
                    one[name] = {str(key): value(item) for key, item in inner.items()}
                else:
                    one[name] = value(inner)
        made.append(one)
    return made


def value(item: Any) -> Any:
    """A Python value as grading spells it: JSON, and objects with one key for the types that JSON lacks."""
    if item is None or isinstance(item, (bool, int, str)):
        return item
    if isinstance(item, float):
        return {"$float": repr(item)} if item != item or item in (float("inf"), float("-inf")) else item
    if isinstance(item, complex):
        return {"$complex": [item.real, item.imag]}
    if isinstance(item, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(bytes(item)).decode("ascii")}
    if isinstance(item, list):
        return [value(one) for one in item]
    for kind, name in ((tuple, "$tuple"), (frozenset, "$frozenset"), (set, "$set")):
        if isinstance(item, kind):
            return {name: [value(one) for one in item]}
    if isinstance(item, Mapping):
        plain = all(isinstance(key, str) and not key.startswith("$") for key in item)
        if plain:
            return {key: value(one) for key, one in item.items()}
        return {"$dict": [[value(key), value(one)] for key, one in item.items()]}
    raise TypeError(f"{item!r} is no value that a test case can hold: {type(item).__name__}")
