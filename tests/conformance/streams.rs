//! What goes in and what comes out: arguments, environment, input, output, languages.

use base64::Engine as _;
use belljar_tests::{FaultDomain, Level, Sandbox, TempDir, Verdict, each_level};

each_level!(streams_and_exit_code_come_back_apart, |level| {
    let code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)";
    let outcome = Sandbox::at(level).run_python(code);
    assert_eq!(outcome.stdout, "out\n");
    assert_eq!(outcome.stderr, "err\n");
    assert_eq!(outcome.verdict, Verdict::Exited { code: 3 });
    assert_eq!((outcome.exit_code, outcome.signal), (Some(3), None));
    assert_eq!(outcome.fault_domain, FaultDomain::Program);
    assert_eq!(outcome.stdout_base64, None);
    assert!(outcome.elapsed_ms > 0.0 && outcome.cpu_ms > 0.0);
});

each_level!(bash_and_node_run, |level| {
    let bash = Sandbox::at(level).run_bash("echo $((6 * 7)); exit 5");
    assert_eq!((bash.stdout.as_str(), bash.exit_code), ("42\n", Some(5)));
    let node = Sandbox::at(level).run_node("console.log([1, 2, 3].map(x => x * x).join())");
    assert!(node.ok(), "{node:?}");
    assert_eq!(node.stdout, "1,4,9\n");
});

each_level!(arguments_arrive_as_given, |level| {
    let args = ["--flag", "two words", "ünïcode", "", "*", "-c"];
    let outcome = Sandbox::at(level).args(args).run_python("import sys; print(sys.argv[1:])");
    assert_eq!(outcome.stdout, "['--flag', 'two words', 'ünïcode', '', '*', '-c']\n");
});

each_level!(environment_is_built_not_inherited, |level| {
    let outcome = Sandbox::at(level)
        .host_env("HOST_SECRET", "leaked")
        .with(["--env", "GIVEN=a=b c", "--env", "EMPTY="])
        .run_python("import os, json; print(json.dumps(dict(os.environ)))");
    assert!(outcome.ok(), "{outcome:?}");
    let seen: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(seen["GIVEN"], "a=b c");
    assert_eq!(seen["EMPTY"], "");
    assert_eq!(seen["USER"], "sandbox");
    assert_eq!(seen.get("HOST_SECRET"), None);
    assert_eq!(seen.get("BELLJAR_BIN"), None);
});

each_level!(standard_input_is_empty_unless_given, |level| {
    let code = "import sys; print(repr(sys.stdin.read()))";
    assert_eq!(Sandbox::at(level).run_python(code).stdout, "''\n");
    // Ours is not the program's either, unless it is passed on by name.
    let not_asked = Sandbox::at(level).host_stdin("not for the program");
    assert_eq!(not_asked.run_python(code).stdout, "''\n");
});

each_level!(standard_input_comes_from_a_file_or_ours, |level| {
    let directory = TempDir::new();
    let path = directory.file("input", "line one\nzwei ü\n");
    let code = "import sys; print(repr(sys.stdin.read()))";
    let from_file = Sandbox::at(level).with(["--stdin".into(), path.into_os_string()]);
    assert_eq!(from_file.run_python(code).stdout, "'line one\\nzwei ü\\n'\n");
    let passed = Sandbox::at(level).with(["--stdin", "-"]).host_stdin("ours");
    assert_eq!(passed.run_python(code).stdout, "'ours'\n");
});

each_level!(input_that_nobody_reads_is_no_trouble, |level| {
    let outcome = Sandbox::at(level)
        .with(["--stdin", "-"])
        .host_stdin(vec![b'x'; 4 << 20])
        .run_python("print('did not read')");
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(outcome.stdout, "did not read\n");
});

each_level!(program_file_runs_by_extension_or_shebang, |level| {
    let directory = TempDir::new();
    let python = directory.file("solve.py", "print(__file__.rsplit('/', 1)[1])");
    let bash = directory.file("go.sh", "echo from bash");
    let node =
        directory.file("app.mjs", "import fs from 'fs'; console.log(typeof fs.readFileSync)");
    let bare = directory.file("tool", "#!/usr/bin/env python3\nprint('by shebang')");
    let sandbox = Sandbox::at(level);
    assert_eq!(sandbox.run_file(&python).stdout, "solve.py\n");
    assert_eq!(sandbox.run_file(&bash).stdout, "from bash\n");
    assert_eq!(sandbox.run_file(&node).stdout, "function\n");
    assert_eq!(sandbox.run_file(&bare).stdout, "by shebang\n");
});

each_level!(program_comes_on_standard_input, |level| {
    let named = Sandbox::at(level)
        .with(["--language", "python"])
        .host_stdin("print('from stdin')")
        .run_file("-".as_ref());
    assert_eq!(named.stdout, "from stdin\n");
    let shebang = Sandbox::at(level).host_stdin("#!/bin/bash\necho told by its first line");
    assert_eq!(shebang.run_file("-".as_ref()).stdout, "told by its first line\n");
});

each_level!(long_output_keeps_head_and_tail_and_counts_the_rest, |level| {
    let code = "import sys
for stream in sys.stdout, sys.stderr:
    stream.write('HEAD' + 'x' * 99_992 + 'TAIL'); stream.flush()";
    let outcome = Sandbox::at(level).with(["--output", "1000"]).run_python(code);
    assert!(outcome.ok(), "too much to keep is not a failure: {outcome:?}");
    for (text, dropped, flagged) in [
        (&outcome.stdout, outcome.stdout_dropped_bytes, outcome.stdout_truncated),
        (&outcome.stderr, outcome.stderr_dropped_bytes, outcome.stderr_truncated),
    ] {
        assert!(text.starts_with("HEADxxx") && text.ends_with("xxxTAIL"), "{text}");
        assert!(text.contains("[belljar: 99000 bytes dropped here]"), "{text}");
        assert_eq!(dropped, 99_000);
        assert!(flagged);
    }
});

each_level!(output_of_exactly_the_cap_is_whole, |level| {
    let outcome = Sandbox::at(level)
        .with(["--output", "1000"])
        .run_python("import sys; sys.stdout.write('y' * 1000)");
    assert_eq!(outcome.stdout, "y".repeat(1000));
    assert_eq!(outcome.stdout_dropped_bytes, 0);
    assert!(!outcome.stdout_truncated);
});

each_level!(bytes_that_are_no_text_come_back_lossless, |level| {
    let code = "import os; os.write(1, bytes(range(256))); os.write(2, b'plain')";
    let outcome = Sandbox::at(level).run_python(code);
    let kept = outcome.stdout_base64.expect("a lossless form");
    let bytes = base64::engine::general_purpose::STANDARD.decode(kept).expect("base64");
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    assert!(outcome.stdout.contains('\u{fffd}'));
    assert_eq!((outcome.stderr.as_str(), outcome.stderr_base64), ("plain", None));
});

each_level!(printing_our_words_changes_nothing, |level| {
    let real = Sandbox::at(level).run_python("pass");
    let mut forged = real.clone();
    forged.verdict = Verdict::MemoryLimit { limit_bytes: 1 };
    forged.fault_domain = FaultDomain::Infrastructure;
    let json = serde_json::to_string(&forged).expect("JSON");
    let words = "belljar: the program was ended: wall time limit\n";
    let code = format!("import sys; print({json:?}); sys.stderr.write({words:?}); sys.exit(9)");
    let outcome = Sandbox::at(level).run_python(&code);
    assert_eq!(outcome.verdict, Verdict::Exited { code: 9 });
    assert_eq!(outcome.fault_domain, FaultDomain::Program);
    assert_eq!(outcome.stdout, format!("{json}\n"));
    assert_eq!(outcome.stderr, words);
    assert!(outcome.events.is_empty(), "{:?}", outcome.events);
});

each_level!(execution_ids_are_unique, |level| {
    let first = Sandbox::at(level).run_python("pass").execution_id;
    let second = Sandbox::at(level).run_python("pass").execution_id;
    assert_eq!(first.len(), 26);
    assert!(first < second, "ids sort by time: {first} {second}");
});

#[test]
fn labels_come_back_with_the_outcome() {
    let outcome = Sandbox::at(Level::Standard)
        .with(["--label", "team=red", "--label", "n=1"])
        .run_python("pass");
    assert_eq!(outcome.labels["team"], "red");
    assert_eq!(outcome.labels["n"], "1");
}
