"""Makes the synchronous half of the package, and of its tests, out of the asynchronous one.

    python3 tools/make_sync.py           # writes
    python3 tools/make_sync.py --check   # says what differs, and fails
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: From, to, and the files of the target that are written by hand.
HALVES = [
    (ROOT / "src/belljar/_async", ROOT / "src/belljar/_sync", {"_transport.py"}),
    (ROOT / "tests/asynchronous", ROOT / "tests/synchronous", set()),
]
HEADER = "# Made by tools/make_sync.py out of {source}. Change that, not this.\n"

RULES = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[str\]", "str"),
    (r", Union\[str, str\]\]", ", str]"),
    (r"Union\[str, str\]", "str"),
    (r"\bAsync(Client|Sandbox|Command|Commands|Contexts|Files|Transport|Stream|RunStream|CommandStream|CodeStream|Iterator)\b", r"\1"),
    (r"\bAsyncContextManager\b", "ContextManager"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bbelljar\.aio\b", "belljar"),
    (r"from any number of tasks", "from any number of threads"),
    (r", also when the call is cancelled", ""),
    (r"\basynchronous\.", "synchronous."),
]
#: Lines that a synchronous program has no use for.
DROPPED = re.compile(r"\s*if inspect\.isawaitable\(answer\):\n\s*answer = answer\n|^import inspect\n", re.M)
IMPORT = re.compile(r"^from typing import ([\w, ]+)$", re.M)


def translated(text: str, source: str) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    text = DROPPED.sub(lambda found: "\n" if found[0].startswith("\n") else "", text)

    def sort_names(found: "re.Match[str]") -> str:
        body = text[found.end() :]
        names = {name for name in found[1].split(", ") if re.search(rf"\b{name}\b", body)}
        order = sorted(names, key=lambda name: (not name.isupper(), name))
        return f"from typing import {', '.join(order)}"

    text = IMPORT.sub(sort_names, text)
    return HEADER.format(source=source) + text


def main() -> int:
    check = "--check" in sys.argv[1:]
    wrong = []
    for source, target, by_hand in HALVES:
        wanted = {}
        for path in sorted(source.glob("*.py")):
            if path.name not in by_hand:
                wanted[path.name] = translated(path.read_text(), str(path.relative_to(ROOT)))
        present = {path.name for path in target.glob("*.py")} - by_hand
        for name in sorted(present | set(wanted)):
            path = target / name
            if name not in wanted:
                wrong.append(path)
                if not check:
                    path.unlink()
            elif not path.exists() or path.read_text() != wanted[name]:
                wrong.append(path)
                if not check:
                    target.mkdir(exist_ok=True)
                    path.write_text(wanted[name])
    for path in wrong:
        print(f"{'differs' if check else 'written'}: {path.relative_to(ROOT)}")
    if check and wrong:
        print("run: python3 sdks/python/tools/make_sync.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
