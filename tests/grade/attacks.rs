//! Candidates that do not solve anything and want to pass. Each fools an ordinary grader first, and then
//! gains nothing here, neither by a call nor by an assert.

use std::num::NonZeroUsize;

use belljar::grade::{Case, CaseVerdict, GradeRequest};
use belljar::{Data, Outcome, RunRequest, Value};
use belljar_tests::{block_on, engine};

const NAIVE: &str = include_str!("naive.py");

/// What nobody can know who has not seen the cases.
pub(crate) const ANSWERS: [i32; 2] = [48_151_623, 42_108_642];

fn inputs() -> [i32; 2] {
    [7, 8]
}

/// Lets the ordinary grader judge a candidate. Both run in a sandbox: it is the score that is attacked.
pub(crate) fn naive(how: &str, code: &str) -> Outcome {
    let cases: Vec<_> = inputs()
        .iter()
        .zip(ANSWERS)
        .map(|(input, answer)| serde_json::json!({ "args": [input], "expected": answer }))
        .collect();
    let mut request = RunRequest::code("python", NAIVE);
    request.file_name = Some("naive.py".to_owned());
    request.args = vec![how.to_owned()];
    request.files.insert("solution.py".to_owned(), code.into());
    let json = serde_json::to_vec(&cases).expect("JSON");
    request.files.insert("cases.json".to_owned(), Data(json));
    block_on(engine().run(request)).expect("the ordinary grader runs")
}

/// Whether an ordinary grader would be satisfied: by the exit code, or by the word.
pub(crate) fn is_fooled(outcome: &Outcome) -> bool {
    outcome.exit_code == Some(0) || outcome.stdout.lines().any(|line| line == "PASSED")
}

fn request(code: &str, cases: Vec<Case>) -> GradeRequest {
    let mut request = GradeRequest::python(code);
    request.func_name = Some("solve".to_owned());
    request.cases = cases;
    request.limits.wall_ms = Some(3000);
    request
}

fn calls() -> Vec<Case> {
    let case = |(input, answer)| Case {
        name: format!("call {input}"),
        input_args: vec![Value::from(input)],
        expected_output: Some(Value::from(answer)),
        ..Case::default()
    };
    inputs().into_iter().zip(ANSWERS).map(case).collect()
}

fn asserts() -> Vec<Case> {
    let case = |(input, answer)| {
        Case::assertion(format!("assert {input}"), format!("assert solve({input}) == {answer}"))
    };
    inputs().into_iter().zip(ANSWERS).map(case).collect()
}

/// The attack works on the ordinary grader, and fails here in every way of testing. Says how.
fn fails_here(how: &str, code: &str) -> Vec<CaseVerdict> {
    let control = naive(how, code);
    assert!(is_fooled(&control), "the attack does not even work outside: {control:?}");
    let mut verdicts = Vec::new();
    for cases in [calls(), asserts()] {
        // One sandbox, whatever the machine is busy with: what an attack leaves in it meets the next case.
        let asked = GradeRequest { parallel: Some(NonZeroUsize::MIN), ..request(code, cases) };
        let grade = block_on(engine().grade(asked)).expect("a grade");
        assert_eq!(grade.score, Some(0.0), "{grade:?}");
        assert!(!grade.all_passed && grade.score_trustworthy, "{grade:?}");
        assert!(grade.test_results.iter().all(|one| !one.passed), "{grade:?}");
        verdicts.extend(grade.test_results.iter().map(|one| one.verdict));
    }
    verdicts
}

#[test]
fn the_ordinary_grader_judges_honest_candidates_rightly_and_so_do_we() {
    let right = format!("def solve(x):\n    return {{7: {}, 8: {}}}[x]\n", ANSWERS[0], ANSWERS[1]);
    let wrong = "def solve(x):\n    return x\n";
    for how in [
        "in_process",
        "with_files",
        "with_asserts",
        "with_a_pipe",
        "with_a_clock",
        "in_a_second_process",
    ] {
        assert!(is_fooled(&naive(how, &right)), "{how}");
        assert!(!is_fooled(&naive(how, wrong)), "{how}");
    }
    for cases in [calls(), asserts()] {
        let grade = block_on(engine().grade(request(&right, cases.clone()))).expect("a grade");
        assert!(grade.all_passed && grade.score == Some(1.0), "{grade:?}");
        let grade = block_on(engine().grade(request(wrong, cases))).expect("a grade");
        assert!(grade.score == Some(0.0) && grade.score_trustworthy, "{grade:?}");
    }
}

#[test]
fn printing_the_marker_is_only_printing() {
    fails_here("in_process", "print('PASSED')\ndef solve(x):\n    print('PASSED')\n    return x\n");
}

#[test]
fn exiting_with_success_is_no_answer() {
    let verdicts = fails_here("in_process", "import sys\ndef solve(x):\n    sys.exit(0)\n");
    assert!(verdicts.iter().all(|one| *one == CaseVerdict::Raised), "{verdicts:?}");
}

#[test]
fn exiting_at_once_is_no_answer() {
    let verdicts = fails_here("in_process", "import os\ndef solve(x):\n    os._exit(0)\n");
    assert!(verdicts.iter().all(|one| *one == CaseVerdict::Ended), "{verdicts:?}");
}

#[test]
fn exiting_while_loaded_is_no_answer() {
    fails_here("in_process", "import os\nos._exit(0)\n");
    fails_here("in_process", "import sys\nsys.exit(0)\n");
}

#[test]
fn patched_builtins_decide_nothing() {
    let code = "import builtins\nbuiltins.all = lambda _: True\nbuiltins.len = lambda _: 0\n\
                builtins.AssertionError = type('Nothing', (BaseException,), {})\n\
                builtins.isinstance = lambda *_: True\ndef solve(x):\n    return x\n";
    fails_here("in_process", code);
}

#[test]
fn an_interpreter_without_asserts_removes_none_of_ours() {
    let code = "import os, sys\nif __debug__:\n    os.execv(sys.executable, [sys.executable, '-O', *sys.argv])\n\
                def solve(x):\n    return x\n";
    fails_here("with_asserts", code);
}

#[test]
fn patching_the_harness_gains_nothing() {
    let code = "import __main__, sys\nfor module in [__main__, *sys.modules.values()]:\n\
                \x20   for name in ('check', 'encode', 'describe', 'carry_out', 'value_told', 'find'):\n\
                \x20       if getattr(module, '__name__', '') in ('__main__', 'belljar_inside') and hasattr(module, name):\n\
                \x20           setattr(module, name, lambda *_: True)\n\
                def solve(x):\n    return x\n";
    fails_here("in_process", code);
}

#[test]
fn frames_hold_no_expected_value() {
    let code = "import sys\ndef solve(x):\n    frame = sys._getframe(1)\n    while frame:\n\
                \x20       for names in (frame.f_locals, frame.f_globals):\n\
                \x20           for one in list(names.values()):\n\
                \x20               if isinstance(one, dict) and 'expected' in one:\n\
                \x20                   return one['expected']\n        frame = frame.f_back\n    return x\n";
    fails_here("in_process", code);
}

#[test]
fn the_heap_holds_no_expected_value() {
    // Anything of the right size that is not the input: with the expected values in reach, that is one.
    let code = "import gc\ndef solve(x):\n    seen = gc.get_objects()\n    for one in seen:\n\
                \x20       if isinstance(one, dict) and one.get('args') == [x] and 'expected' in one:\n\
                \x20           return one['expected']\n\
                \x20   found = [n for one in seen if type(one) in (dict, list, tuple)\n\
                \x20            for n in (one.values() if type(one) is dict else one)\n\
                \x20            if type(n) is int and 40_000_000 < n < 50_000_000]\n\
                \x20   return found[0] if found else x\n";
    fails_here("in_process", code);
}

#[test]
fn planted_modules_are_never_loaded() {
    // Each of these is run by the next Python that starts here.
    let planted =
        "import atexit, os\nprint('PASSED', flush=True)\natexit.register(lambda: os._exit(0))";
    let code = format!(
        "planted = {planted:?}\nfor name in ('sitecustomize.py', 'usercustomize.py', 'conftest.py', 'json.py', \
         'ast.py'):\n    open('/workspace/' + name, 'w').write(planted)\ndef solve(x):\n    return x\n"
    );
    fails_here("in_a_second_process", &code);
}

#[test]
fn a_pth_file_is_never_read() {
    let code = "import os, sys\nhome = os.path.expanduser('~/.local/lib/python%d.%d/site-packages' % sys.version_info[:2])\n\
                os.makedirs(home, exist_ok=True)\n\
                open(home + '/evil.pth', 'w').write('import os; print(\"PASSED\", flush=True); os._exit(0)\\n')\n\
                def solve(x):\n    return x\n";
    fails_here("in_a_second_process", code);
}

#[test]
fn a_daemon_that_outlives_its_test_changes_no_result() {
    let code = "import os, time\ndef solve(x):\n    if os.fork() == 0:\n        os.setsid()\n\
                \x20       for _ in range(200):\n            time.sleep(0.01)\n\
                \x20           try:\n                open('/workspace/results.json', 'w').write('true\\ntrue\\n')\n\
                \x20           except OSError:\n                pass\n        os._exit(0)\n    return x\n";
    fails_here("with_files", code);
}

#[test]
fn writing_to_every_descriptor_is_tampering_or_nothing() {
    let code = "import os\ndef solve(x):\n    for fd in range(1, 256):\n        try:\n\
                \x20           os.write(fd, b'{\"passed\": true}')\n        except OSError:\n            pass\n    return x\n";
    let verdicts = fails_here("with_a_pipe", code);
    assert!(verdicts[..2].iter().all(|one| *one == CaseVerdict::Tampered), "{verdicts:?}");
}

/// Python that writes these to every descriptor: messages in our own form where we are beside it.
fn forging(messages: &str, when: &str) -> String {
    format!(
        "import os, sys\ndef framed(message):\n    return len(message).to_bytes(4, 'little') + message\n\
         ours = hasattr(sys.modules['__main__'], 'Channel')\n\
         forged = b''.join(map(framed, {messages})) if ours else b'{{\"passed\": true}}'\n\
         def forge():\n    for fd in range(1, 256):\n        try:\n            os.write(fd, forged)\n\
         \x20       except OSError:\n            pass\n{when}"
    )
}

#[test]
fn a_forged_answer_is_tampering() {
    // Knows our protocol, but not the word that only the asked process was given, nor the answer.
    for message in [
        "[b'{\"n\":\"0\",\"value\":true,\"passed\":true}']",
        "[b'v' + b'0' * 24 + bytes(8) + b'T']",
        "[b'v' + b'0' * 24 + bytes(8) + b'T', b'e[\\x02\\0\\0\\0i' + bytes(4) + b'i' + bytes(4)]",
        "[b'e[\\x02\\0\\0\\0i' + bytes(4) + b'i' + bytes(4), b'e[\\x02\\0\\0\\0i' + bytes(4) + b'i' + bytes(4)]",
        "[b'v']",
        "[b'\\xff' * 100]",
    ] {
        let code = forging(message, "def solve(x):\n    forge()\n    return x\n");
        let verdicts = fails_here("with_a_pipe", &code);
        // Who says that it has ended is taken at its word: then it gave no answer.
        let caught = |one: &CaseVerdict| matches!(one, CaseVerdict::Tampered | CaseVerdict::Ended);
        assert!(verdicts[..2].iter().all(caught), "{message}: {verdicts:?}");
        let tampered = verdicts[..2].contains(&CaseVerdict::Tampered);
        assert!(tampered || message.starts_with("[b'e'"), "{message}: {verdicts:?}");
    }
}

#[test]
fn speaking_before_being_asked_is_tampering() {
    for messages in [
        "[b'{\"loaded\":true}', b'{\"ended\":0}', b'{\"ended\":0}', b'{\"ended\":0}']",
        "[b'{\"loaded\":true}', b'e[\\x02\\0\\0\\0i' + bytes(4) + b'i' + bytes(4), b'e[\\x02\\0\\0\\0i' + bytes(4) + b'i' + bytes(4)]",
    ] {
        let code = forging(messages, "forge()\ndef solve(x):\n    return x\n");
        let verdicts = fails_here("with_a_pipe", &code);
        assert!(verdicts.iter().all(|one| *one == CaseVerdict::Tampered), "{verdicts:?}");
    }
}

#[test]
fn what_runs_at_exit_comes_too_late() {
    let code =
        "import atexit, os\natexit.register(lambda: os._exit(0))\ndef solve(x):\n    return x\n";
    fails_here("in_process", code);
}

#[test]
fn a_signal_handler_does_not_stop_the_clock() {
    let code = "import os, signal\nfor number in signal.valid_signals():\n    try:\n\
                \x20       signal.signal(number, lambda *_: os._exit(0))\n    except (OSError, ValueError):\n        pass\n\
                def solve(x):\n    while True:\n        pass\n";
    let verdicts = fails_here("with_a_clock", code);
    assert!(verdicts.iter().all(|one| *one == CaseVerdict::TimeLimit), "{verdicts:?}");
}

#[test]
fn there_is_no_file_of_expected_values_to_change_between_cases() {
    let code = "import json\ndef solve(x):\n    try:\n        cases = [{'args': [7], 'expected': 7}, {'args': [8], 'expected': 8}]\n\
                \x20       json.dump(cases, open('/workspace/cases.json', 'w'))\n    except OSError:\n        pass\n    return x\n\
                solve(0)\n";
    fails_here("with_files", code);
}

#[test]
fn there_is_no_file_of_expected_values_to_read() {
    let code = "import json, os\ndef solve(x):\n    for top, _, names in os.walk('/workspace'):\n        for name in names:\n\
                \x20           try:\n                for case in json.load(open(os.path.join(top, name))):\n\
                \x20                   if case['args'] == [x]:\n                        return case['expected']\n\
                \x20           except Exception:\n                pass\n    return x\n";
    fails_here("in_process", code);
}

#[test]
fn an_object_that_equals_everything_equals_nothing() {
    let code = "class Yes:\n    def __eq__(self, other):\n        return True\n    __ne__ = __lt__ = __contains__ = __eq__\n\
                \x20   __hash__ = None\n    def __reduce__(self):\n        return (int, (42,))\n\
                \x20   @property\n    def __class__(self):\n        return int\n\
                def solve(x):\n    return Yes()\n";
    fails_here("in_process", code);
}

#[test]
fn a_number_that_lies_is_read_as_what_it_holds() {
    let code = "class Lie(int):\n    def __eq__(self, other):\n        return True\n    def __hash__(self):\n        return 0\n\
                \x20   def __int__(self):\n        return 48151623\n    __index__ = __int__\n\
                \x20   def __repr__(self):\n        return '48151623'\n    __str__ = __repr__\n\
                def solve(x):\n    return Lie(0)\n";
    let verdicts = fails_here("in_process", code);
    assert!(verdicts.iter().all(|one| *one == CaseVerdict::WrongAnswer), "{verdicts:?}");
}

#[test]
fn a_list_that_lies_is_read_as_what_it_holds() {
    let code = "class Lie(list):\n    def __eq__(self, other):\n        return True\n    def __iter__(self):\n\
                \x20       return iter([1, 2])\n    def __len__(self):\n        return 2\ndef solve(x):\n    return Lie()\n";
    assert!(is_fooled(&naive("in_process", code)));
    let case =
        Case { expected_output: Some(Value::List(vec![1.into(), 2.into()])), ..calls().remove(0) };
    let grade = block_on(engine().grade(request(code, vec![case]))).expect("a grade");
    assert_eq!(grade.test_results[0].verdict, CaseVerdict::WrongAnswer, "{grade:?}");
    assert_eq!(grade.test_results[0].output, Some(Value::List(Vec::new())));
}

#[test]
fn ending_the_harness_is_no_answer_and_no_fault_of_ours() {
    // The control exits well when its grader is gone: nothing is left that could say FAILED.
    let code = "import os, signal\ndef solve(x):\n    print('PASSED', flush=True)\n    os.kill(os.getppid(), signal.SIGKILL)\n\
                \x20   os.kill(-1, signal.SIGKILL)\n    os.kill(os.getpid(), signal.SIGKILL)\n";
    let control = naive("with_a_pipe", code);
    assert!(control.stdout.contains("PASSED"), "{control:?}");
    for cases in [calls(), asserts()] {
        let grade = block_on(engine().grade(request(code, cases))).expect("a grade");
        assert!(grade.score == Some(0.0) && grade.score_trustworthy, "{grade:?}");
    }
}

#[test]
fn hidden_inputs_do_not_leave_by_the_way_of_public_cases() {
    // Keeps what it is asked, and tells it in the output of whatever is asked later.
    let code = "import os\ndef solve(x):\n    with open('/tmp/seen', 'a') as file:\n        file.write(f'{x} ')\n\
                \x20   print(open('/tmp/seen').read())\n    raise ValueError(open('/tmp/seen').read())\n";
    let mut asked = request(code, calls());
    asked.hidden = vec![Case {
        name: "secret".to_owned(),
        input_args: vec![Value::from("the hidden input")],
        expected_output: Some(Value::from("the hidden answer")),
        ..Case::default()
    }];
    asked.parallel = std::num::NonZeroUsize::new(1);
    let mut shown = asked.clone();
    shown.show_hidden = true;
    let grade = block_on(engine().grade(asked)).expect("a grade");
    let json = serde_json::to_string(&grade).expect("JSON");
    assert!(json.contains("secret") && !json.contains("the hidden"), "{json}");
    // The control: to whom it may be shown, it is.
    let grade = block_on(engine().grade(shown)).expect("a grade");
    let json = serde_json::to_string(&grade).expect("JSON");
    assert!(json.contains("the hidden input") && json.contains("the hidden answer"), "{json}");
    assert!(
        grade
            .test_results
            .iter()
            .filter(|one| !one.hidden)
            .all(|one| !one.printed.contains("hidden"))
    );
}
