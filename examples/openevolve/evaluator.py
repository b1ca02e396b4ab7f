"""An evaluator for OpenEvolve: the program is graded by Belljar, in a sandbox, with the answers outside of it.

OpenEvolve calls `evaluate(program_path)` and wants a dict of numbers. Try it alone:

    python3 examples/openevolve/evaluator.py examples/evolve/regression.py
"""

import json
import os
import subprocess
import sys

CASES = os.environ.get("BELLJAR_CASES", os.path.join(os.path.dirname(__file__), "../evolve/public.json"))


def evaluate(program_path):
    told = subprocess.run(
        ["belljar", "test", program_path, "--cases", CASES, "--json"], capture_output=True, text=True
    )
    grade = json.loads(told.stdout)
    if "error" in grade or not grade["score_trustworthy"]:
        raise RuntimeError(told.stdout)  # our fault or the task's, never the program's: no score
    return {"combined_score": grade["score"], "all_passed": float(grade["all_passed"])}


if __name__ == "__main__":
    print(json.dumps(evaluate(sys.argv[1])))
