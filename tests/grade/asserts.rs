//! Asserts: in a sandbox of their own, with the candidate in another.

use belljar::grade::{Case, CaseVerdict, GradeRequest};

use crate::calls::grade;

const CANDIDATE: &str = "import math
class Liar:
    def __eq__(self, other):
        return True
class Tally:
    def __init__(self, start=0):
        self.total = start
    def add(self, number):
        self.total += number
        return self
    def __len__(self):
        return 3
class Own(ValueError):
    pass
def double(x):
    return x * 2
def sort(rows):
    rows.sort()
def lie():
    return Liar()
def count(n):
    yield from range(n)
def refuse(kind):
    raise {'key': KeyError('nope'), 'own': Own('mine')}[kind]
def max(a, b):
    return 'their own'
def end():
    import os
    os._exit(0)
def hang():
    while True:
        pass
def apply(function, x):
    return function(x)
math.isclose = lambda *_, **__: True
";

/// The verdict of one assert, and what is said of it.
fn check(source: &str) -> (CaseVerdict, String) {
    let mut request = GradeRequest::python(CANDIDATE);
    request.func_name = Some("double".to_owned());
    request.cases = vec![Case { timeout_ms: Some(3000), ..Case::assertion("it", source) }];
    let result = grade(request).test_results.remove(0);
    (result.verdict, result.detail)
}

#[test]
fn asserts_that_hold_pass() {
    for source in [
        "assert double(2) == 4",
        "assert double('a') == 'aa' and double([1]) == [1, 1] and isinstance(double((1,)), tuple)",
        "rows = [3, 1, 2]\nassert sort(rows) is None\nassert rows == [1, 2, 3]",
        "assert list(count(3)) == [0, 1, 2]",
        "tally = Tally(5)\ntally.add(1).add(2)\nassert tally.total == 8\nassert len(tally) == 3",
        "try:\n    refuse('key')\n    assert False\nexcept KeyError as error:\n    assert 'nope' in str(error)",
        "try:\n    refuse('own')\n    assert False\nexcept ValueError:\n    pass",
        "assert max(1, 2) == 'their own'",
        "def check(candidate):\n    for i in range(10):\n        assert candidate(i) == 2 * i\ncheck(candidate)",
    ] {
        assert_eq!(check(source).0, CaseVerdict::Passed, "{source}: {:?}", check(source));
    }
}

#[test]
fn asserts_that_do_not_hold_say_what_was_found() {
    use CaseVerdict::{Ended, Raised, TimeLimit, WrongAnswer};
    for (source, verdict, word) in [
        ("assert double(2) == 5", WrongAnswer, "4 == 5 is false"),
        ("assert double(2) == 5, 'own words'", WrongAnswer, "own words"),
        ("assert refuse('key')", Raised, "KeyError: 'nope'"),
        ("assert end()", Ended, "exited with code 0"),
        ("assert hang()", TimeLimit, "3000 ms"),
        ("assert nothing_here(1)", Raised, "NameError"),
        ("assert double((", Raised, "SyntaxError"),
        ("double(2)", Raised, "holds no assert"),
        ("if double(0):\n    assert False", WrongAnswer, "reached"),
        // What cannot be passed is said, and never taken for a pass.
        ("assert lie() == 5", Raised, "cannot be compared"),
        ("assert 5 == lie()", Raised, "cannot be compared"),
        ("assert lie()", Raised, "cannot be compared"),
        ("assert 5 in [lie()]", Raised, "cannot be compared"),
        ("assert apply(lambda x: x, 1) == 1", Raised, "plain values"),
        // Modules are the test's own, whatever the candidate did to its.
        ("assert math.isclose(double(1), 7.0)", WrongAnswer, "is false"),
    ] {
        let (found, detail) = check(source);
        assert!(found == verdict && detail.contains(word), "{source}: {found:?} {detail}");
    }
}

#[test]
fn every_assert_has_a_process_of_its_own_on_both_sides() {
    let mut request = GradeRequest::python(
        "seen = []\ndef remember(x):\n    seen.append(x)\n    return len(seen)\n",
    );
    request.cases = (0..4)
        .map(|one| {
            Case::assertion(format!("{one}"), "assert remember(1) == 1\nassert remember(1) == 2")
        })
        .collect();
    let grade = grade(request);
    assert!(grade.all_passed, "{grade:#?}");
}

#[test]
fn asserts_may_import_the_candidate_by_the_name_of_its_file() {
    let code = "LIMIT = 3\ndef double(x):\n    return x * 2\nclass Tally:\n    total = 5\n";
    for (file, source, word) in [
        (
            "mine.py",
            "from mine import double, LIMIT as most\nassert double(2) == 4 and most == 3",
            "",
        ),
        ("mine.py", "import mine\nassert mine.double(2) == 4 and mine.Tally().total == 5", ""),
        ("mine.py", "import mine as m\nassert m.double(2) == 5", "4 == 5"),
        ("mine.py", "from mine import *\nassert double(2) == 4", ""),
        ("mine.py", "from solution import double\nassert double(2) == 4", ""),
        (
            "mine.py",
            "def test():\n    from mine import double\n    assert double(2) == 5\ntest()",
            "4 == 5",
        ),
        (
            "mine.py",
            "from mine import triple\nassert triple(2) == 6",
            "cannot import name 'triple'",
        ),
        ("mine.py", "import mine\nassert mine.triple(2) == 6", "no attribute 'triple'"),
        // Never in the place of a module of the standard library.
        ("math.py", "import math\nassert math.floor(double(1.2)) == 2", ""),
    ] {
        let mut request = GradeRequest::python(code);
        request.file_name = Some(file.to_owned());
        request.cases = vec![Case::assertion("it", source)];
        let result = grade(request).test_results.remove(0);
        let (passed, detail) = (result.passed, &result.detail);
        assert!(passed == word.is_empty() && detail.contains(word), "{source}: {result:?}");
    }
}
