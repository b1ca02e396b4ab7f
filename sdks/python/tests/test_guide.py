"""The examples of the guide, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

from .conftest import DEADLINE_S, Server

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/python.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.M | re.S)


def examples() -> List[Tuple[str, str]]:
    return [(found[1], found[2]) for found in EXAMPLE.finditer(GUIDE.read_text())]


def test_every_example_is_found() -> None:
    assert len(examples()) == GUIDE.read_text().count("```python") >= 8
    assert all(output for _, output in examples())


@pytest.mark.parametrize("number", range(len(examples())))
def test_example_prints_what_the_guide_says(server: Server, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    code, output = examples()[number]
    monkeypatch.setenv("BELLJAR_URL", server.url)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == output
