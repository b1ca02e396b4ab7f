"""Proposes a program without any model: the parent, with one to three of its numbers changed.

Reads one JSON object on standard input and writes the whole program on standard output, as every
`command` proposer does. All chance comes from the seed in the request: the same request, the same answer.
"""

import json
import random
import re
import sys

NUMBER = re.compile(r"-?\d+\.\d+")
BLOCK = re.compile(r"(# EVOLVE-BLOCK-START\n)(.*?)(# EVOLVE-BLOCK-END)", re.DOTALL)
STEPS = [2.0, 1.0, 1.0, 0.5, 0.5]


def mutate(code, chance):
    block = BLOCK.search(code)
    inner = block.group(2)
    places = list(NUMBER.finditer(inner))
    for place in sorted(chance.sample(places, chance.choice([1, 2, 3])), key=lambda one: -one.start()):
        value = float(place.group()) + chance.choice([-1, 1]) * chance.choice(STEPS)
        inner = inner[: place.start()] + f"{round(value, 2):.2f}" + inner[place.end() :]
    return code[: block.start(2)] + inner + code[block.end(2) :]


def main():
    request = json.load(sys.stdin)
    chance = random.Random(request["seed"])
    sys.stdout.write(mutate(request["parent"]["code"], chance))


main()
