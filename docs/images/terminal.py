"""Draws docs/images/run.svg from real output: python3 docs/images/terminal.py BELLJAR > docs/images/run.svg

Run it from the root of the repository. Each command is run as it is shown, by a shell, with BELLJAR's directory
first on the PATH; what it prints on either stream is what the picture holds.
"""

import os
import subprocess
import sys
from xml.sax.saxutils import escape

COMMANDS = [
    "belljar run examples/hello.py",
    "belljar run --timeout 500ms -c 'while True: pass'; echo \"exit code $?\"",
    "belljar doctor --attack",
]
LINE, LETTER, MARGIN, BAR = 18, 7.8, 16, 34
BACK, TEXT, PROMPT, FAINT = "#1b1f27", "#d7dce5", "#7fd1a5", "#8b94a5"


def run(command: str, path: str) -> list[str]:
    environment = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "-c", command], env=environment, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    return done.stdout.rstrip("\n").split("\n")


def draw(lines: list[tuple[str, str]]) -> str:
    width = round(max(len(text) for text, _ in lines) * LETTER + 2 * MARGIN)
    height = BAR + len(lines) * LINE + MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>A terminal: a run, a time limit, and doctor --attack</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACK}"/>',
    ]
    for place, colour in enumerate(["#e06c75", "#e5c07b", "#98c379"]):
        out.append(f'<circle cx="{MARGIN + 6 + place * 18}" cy="17" r="5.5" fill="{colour}"/>')
    out.append('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">')
    for row, (text, colour) in enumerate(lines):
        if text:
            # textLength keeps columns in line whatever font the reader has.
            span = f'textLength="{round(len(text) * LETTER, 1)}" lengthAdjust="spacingAndGlyphs"'
            y = BAR + LINE * row + 13
            out.append(f'<text x="{MARGIN}" y="{y}" fill="{colour}" {span}>{escape(text)}</text>')
    return "\n".join([*out, "</g>", "</svg>"])


def main() -> None:
    path = os.path.dirname(os.path.abspath(sys.argv[1]))
    lines: list[tuple[str, str]] = []
    for command in COMMANDS:
        lines.append((f"$ {command}", PROMPT))
        for text in run(command, path):
            lines.append((text, FAINT if text.startswith(("belljar:", "n/a:")) else TEXT))
        lines.append(("", TEXT))
    print(draw(lines[:-1]))


main()
