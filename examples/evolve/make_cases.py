"""Writes the cases of regression.toml: points of a curve, each asked with ever less tolerance, so that a
program that is nearer to the curve passes more of them."""

import json


def wanted(x):
    return 1.5 - 2.0 * x + 0.5 * x**2 + 1.0 * x**3


def cases(points, tolerances):
    return [
        {
            "name": f"f({x}) within {tolerance}",
            "input_args": [x],
            "expected_output": wanted(x),
            "tolerance": {"abs": tolerance},
        }
        for x in points
        for tolerance in tolerances
    ]


TOLERANCES = [16.0, 12.0, 8.0, 6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.1]
for name, points in [("public", [-2.0, -1.0, 0.0, 1.0, 2.0]), ("hidden", [-1.5, 0.5, 1.5])]:
    with open(f"{name}.json", "w") as file:
        file.write("[\n" + ",\n".join("  " + json.dumps(one) for one in cases(points, TOLERANCES)) + "\n]\n")
