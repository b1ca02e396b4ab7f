# EVOLVE-BLOCK-START
COEFFICIENTS = [0.0, 0.0, 0.0, 0.0]
# EVOLVE-BLOCK-END


def curve(x):
    """The polynomial with these coefficients, the constant one first."""
    total = 0.0
    for coefficient in reversed(COEFFICIENTS):
        total = total * x + coefficient
    return total
