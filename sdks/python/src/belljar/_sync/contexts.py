# Made by tools/make_sync.py out of src/belljar/_async/contexts.py. Change that, not this.
"""Interpreters of a sandbox that keep their variables."""

from __future__ import annotations

from typing import List, Mapping, Optional

from .. import _read, _retry, _wire
from ..models import ContextInfo
from ._transport import Transport


class Contexts:
    """``sandbox.contexts``. Each language has one of its own name, made at its first use; these are more."""

    def __init__(self, transport: Transport, base: str) -> None:
        self._transport = transport
        self._base = base

    def create(
        self, language: Optional[str] = None, *, cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None
    ) -> ContextInfo:
        """A further context; its ``id`` is for ``run_code(context=…)``."""
        body = _wire.given(language=language, cwd=cwd, env=None if env is None else dict(env))
        call = _retry.Call("POST", f"{self._base}/contexts", body)
        return _read.context_info(self._transport.json(call))

    def list(self) -> List[ContextInfo]:
        found = self._transport.items(f"{self._base}/contexts", "contexts")
        return [_read.context_info(one) for one in found]

    def interrupt(self, id: str) -> str:
        """As Ctrl-C would: the code that runs is ended, variables stay.

        What came of it: ``idle`` (no code ran), ``heard`` (the code has it, and may be clearing up), ``ended``, or
        ``restarted`` (the code did not hear it, and was ended with its context).
        """
        call = _retry.Call("POST", f"{self._base}/contexts/{_wire.segment(id)}/interrupt")
        return str((self._transport.json(call))["outcome"])

    def restart(self, id: str) -> None:
        """Forgets everything."""
        self._transport.read(_retry.Call("POST", f"{self._base}/contexts/{_wire.segment(id)}/restart"))

    def remove(self, id: str) -> None:
        self._transport.read(_retry.Call("DELETE", f"{self._base}/contexts/{_wire.segment(id)}"))
