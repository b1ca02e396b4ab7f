"""A grader as many are: it loads the candidate into its own process, compares there, and says PASSED."""
import importlib.util, json, os, signal, subprocess, sys

how, WORK = sys.argv[1], "/workspace"


def load():
    spec = importlib.util.spec_from_file_location("solution", f"{WORK}/solution.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["solution"] = module
    spec.loader.exec_module(module)
    return module


def read_cases():
    with open(f"{WORK}/cases.json") as file:
        return json.load(file)


def check(module, case):
    expected = case["expected"]
    return module.solve(*case["args"]) == expected


def in_process():
    cases = read_cases()
    module = load()
    results = [check(module, case) for case in cases]
    return all(results)


def with_files():
    """Reads the cases again for each, and keeps results in a file."""
    module, results = load(), f"{WORK}/results.json"
    for index in range(len(read_cases())):
        passed = check(module, read_cases()[index])
        with open(results, "a") as file:
            file.write(json.dumps(passed) + "\n")
    subprocess.run(["sleep", "0.5"])  # other work, as graders have it
    with open(results) as file:
        return all(json.loads(line) for line in file)


def with_asserts():
    module = load()
    for case in read_cases():
        assert module.solve(*case["args"]) == case["expected"]
    return True


def with_a_pipe():
    """The candidate in a child, which reports over a pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        verdict = in_process()
        os.write(writing, json.dumps({"passed": verdict}).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    first = os.read(reading, 1 << 16).decode()
    return json.JSONDecoder().raw_decode(first)[0]["passed"]


def with_a_clock():
    def too_long(*_):
        print("FAILED: too long")
        os._exit(1)

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(1)
    return in_process()


def in_a_second_process():
    """Loads it once to see that it can be, then tests it in a fresh interpreter."""
    load()
    environment = {**os.environ, "PYTHONPATH": WORK}
    again = subprocess.run([sys.executable, __file__, "in_process"], env=environment, capture_output=True, text=True)
    return again.returncode == 0 and "PASSED" in again.stdout


def with_a_tolerance():
    """As near as a share of the larger of the two."""
    module = load()
    near = lambda one, two: abs(one - two) <= 1e-6 * max(abs(one), abs(two))
    return all(near(module.solve(*case["args"]), case["expected"]) for case in read_cases())


def in_its_namespace():
    """The test's text, run where the candidate was, as sets of problems are tested."""
    module = load()
    for case in read_cases():
        exec(f"assert abs(solve(*{case['args']}) - {case['expected']}) < 1e-6", module.__dict__)
    return True


def with_its_modules():
    module = load()
    for case in read_cases():
        exec(f"assert math.isclose(solve(*{case['args']}), {case['expected']})", module.__dict__)
    return True


def by_map():
    module, cases = load(), read_cases()
    found = map(module.solve, (case["args"][0] for case in cases))
    return all(one == case["expected"] for one, case in zip(found, cases))


def by_the_name_of_its_type():
    """Any whole number will do."""
    module = load()
    found = [module.solve(*case["args"]) for case in read_cases()]
    return all(type(one).__name__ == "int" and one == case["args"][0] for one, case in zip(found, read_cases()))


if globals()[how]():
    print("PASSED")
else:
    print("FAILED")
    sys.exit(1)
