"""An evaluation script for ShinkaEvolve: the program is graded by Belljar, in a sandbox.

ShinkaEvolve runs `evaluate.py --program_path P --results_dir D` and reads metrics.json and correct.json. Try it alone:

    python3 examples/shinkaevolve/evaluate.py --program_path examples/evolve/regression.py --results_dir /tmp/results
"""

import argparse
import json
import os
import subprocess

CASES = os.environ.get("BELLJAR_CASES", os.path.join(os.path.dirname(__file__), "../evolve/public.json"))


def main(program_path, results_dir):
    told = subprocess.run(
        ["belljar", "test", program_path, "--cases", CASES, "--json"], capture_output=True, text=True
    )
    grade = json.loads(told.stdout)
    trusted = "error" not in grade and grade["score_trustworthy"]
    metrics = {"combined_score": grade["score"] if trusted else 0.0, "text_feedback": grade.get("feedback_text", "")}
    correct = {"correct": trusted, "error": None if trusted else told.stdout}
    os.makedirs(results_dir, exist_ok=True)
    for name, value in [("metrics.json", metrics), ("correct.json", correct)]:
        with open(os.path.join(results_dir, name), "w") as file:
            json.dump(value, file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program_path", required=True)
    parser.add_argument("--results_dir", required=True)
    main(**vars(parser.parse_args()))
