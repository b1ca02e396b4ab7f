//! Reading code before it is run: what is told, what is refused, and what is left alone.

use belljar_tests::{Ended, Program, TempDir};

const DANGEROUS: &str = "import os as o\nprint('ran')\no.system('true')\n";

fn screen(options: &[&str], code: &str) -> Ended {
    Program::belljar().arg("screen").args(options).arg("-").stdin(code).run()
}

fn run(options: &[&str], code: &str) -> Ended {
    Program::belljar().args(["run", "--no-server"]).args(options).args(["-c", code]).run()
}

#[test]
fn findings_are_told_with_place_reason_and_advice() {
    let directory = TempDir::new();
    let file = directory.file("tool.py", DANGEROUS);
    let ended = Program::belljar().arg("screen").arg(&file).run();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let path = file.display();
    for words in [
        &*format!("{path}:3:1: medium: os.system: starts a shell [python/os-system]"),
        "    o.system('true')",
        "    → ",
    ] {
        assert!(ended.out().contains(words), "no {words:?} in {ended:?}");
    }
    assert!(ended.err().contains("advice") && ended.err().contains("the sandbox is the wall"));
    assert!(!ended.out().contains("ran\n"), "it was run: {ended:?}");
}

#[test]
fn findings_are_json_when_asked_for() {
    let ended = screen(&["--json", "--language", "python"], DANGEROUS);
    assert_eq!((ended.code, ended.err().as_str()), (Some(1), ""), "{ended:?}");
    let json = ended.json();
    let finding = &json["findings"][0];
    assert_eq!(finding["rule"], "python/os-system");
    assert_eq!((&finding["line"], &finding["column"]), (&3.into(), &1.into()));
    assert!(json["note"].as_str().is_some_and(|note| note.contains("the sandbox is the wall")));
}

#[test]
fn harmless_code_is_told_to_be_so() {
    let ended = screen(&["-l", "python"], "import re\nre.compile('eval(')\nopen('p').read()\n");
    assert_eq!((ended.code, ended.out().as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.err().contains("nothing found"), "{ended:?}");
    // Ordinary programs write files: told, and no reason to refuse.
    let writes = screen(&["-l", "python"], "open('p', 'w')\n");
    assert_eq!(writes.code, Some(0), "{writes:?}");
    assert!(writes.out().contains("python/open-write"), "{writes:?}");
}

#[test]
fn language_is_told_by_name_by_line_or_by_option() {
    let directory = TempDir::new();
    let file = directory.file("tool.sh", "rm -rf /\n");
    let by_name = Program::belljar().arg("screen").arg(file).run();
    let by_line = screen(&[], "#!/bin/bash\nrm -rf /\n");
    let by_option = screen(&["--language", "bash"], "rm -rf /\n");
    for ended in [by_name, by_line, by_option] {
        assert!(ended.out().contains("high: rm: ") && ended.code == Some(1), "{ended:?}");
    }
    let javascript = screen(&["-l", "node"], "require('child_' + 'process')\n");
    assert!(javascript.out().contains("javascript/child-process"), "{javascript:?}");
}

#[test]
fn mistakes_of_the_caller_are_told() {
    for (ended, words) in [
        (screen(&[], "print(1)"), &["language", "--language"][..]),
        (screen(&["-l", "cobol"], "x"), &["cobol", "python"]),
        (Program::belljar().args(["screen", "/nonexistent.py"]).run(), &["/nonexistent.py"]),
        (Program::belljar().arg("screen").run(), &["FILE"]),
        (run(&["--screen", "maybe"], "1"), &["--screen", "off, advise, refuse"]),
        (run(&["--screen-rules", "/nonexistent.toml"], "1"), &["/nonexistent.toml"]),
    ] {
        assert_eq!((ended.code, ended.out().as_str()), (Some(2), ""), "{ended:?}");
        words.iter().for_each(|word| assert!(ended.err().contains(word), "{word}: {ended:?}"));
    }
}

/// The line and the words that the language's own program says of a file on this host.
fn said_outside(program: &str, options: &[&str], file: &std::path::Path) -> String {
    let ended = Program::new(program).args(options).arg(file).run();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    ended.err()
}

#[test]
fn syntax_errors_are_told_as_the_language_tells_them() {
    let directory = TempDir::new();
    let python = directory.file("bad.py", "x = 1\nif x\n    pass\n");
    let bash = directory.file("bad.sh", "echo a\nif true; then\ndone\n");
    let node = directory.file("bad.mjs", "import fs from 'fs';\nlet x = ;\n");
    for (file, program, options, place) in [
        (&python, "/usr/bin/python3", &["-I"][..], ":2:5: syntax: SyntaxError: "),
        (&bash, "/bin/bash", &["-n"], ":3: syntax: "),
        (&node, "/usr/bin/node", &["--check"], ":2:9: syntax: SyntaxError: "),
    ] {
        let ended = Program::belljar().arg("screen").arg(file).run();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let out = ended.out();
        let place = format!("{}{place}", file.display());
        let message = out.lines().find_map(|line| line.strip_prefix(&place));
        let message = message.unwrap_or_else(|| panic!("no {place} in {ended:?}"));
        let outside = said_outside(program, options, file);
        assert!(outside.contains(message), "{message} is not in {outside}");
    }
}

#[test]
fn syntax_that_only_the_language_knows_to_be_wrong_is_found() {
    // Our grammar takes both; the language does not.
    for code in ["print 'old'\n", "return 1\n"] {
        let ended = screen(&["--json", "-l", "python"], code);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert_eq!(ended.json()["syntax_errors"][0]["line"], 1, "{ended:?}");
    }
}

#[test]
fn advice_is_one_line_after_the_run() {
    let ended = run(&[], DANGEROUS);
    assert_eq!((ended.code, ended.out().as_str()), (Some(0), "ran\n"), "{ended:?}");
    let err = ended.err();
    assert_eq!(err.lines().count(), 1, "{err}");
    for words in ["belljar: advice: main.py line 3: os.system: starts a shell", "belljar screen"] {
        assert!(err.contains(words), "{err}");
    }
    for silent in [&["--quiet"][..], &["--screen", "off"]] {
        assert_eq!(run(silent, DANGEROUS).err(), "");
    }
    // What ordinary programs do is no reason to speak.
    assert_eq!(run(&[], "open('p', 'w').close()").err(), "");
}

#[test]
fn outcome_holds_what_was_found() {
    let json = run(&["--json"], DANGEROUS).json();
    assert_eq!(json["screening"]["findings"][0]["name"], "os.system", "{json}");
    assert_eq!(run(&["--json", "--screen", "off"], DANGEROUS).json()["screening"], json["nothing"]);
    assert_eq!(run(&["--json"], "print(1)").json()["screening"], json["nothing"]);
}

#[test]
fn refused_code_is_not_run_and_no_sandbox_is_made() {
    let ended = run(&["--screen", "refuse"], DANGEROUS);
    assert_eq!((ended.code, ended.out().as_str()), (Some(2), ""), "{ended:?}");
    for words in ["refused by screening", "line 3", "python/os-system", "--screen advise"] {
        assert!(ended.err().contains(words), "no {words} in {ended:?}");
    }
    // A sandbox whose set-up breaks tells that, unless none is made.
    let broken = ["--break-at", "clone"];
    assert_eq!(run(&broken, DANGEROUS).code, Some(125));
    let refused = run(&["--break-at", "clone", "--screen", "refuse", "--json"], DANGEROUS);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let error = &refused.json()["error"];
    assert_eq!((&error["kind"], &error["field"]), (&"screened".into(), &"code".into()));
    assert_eq!(error["screening"]["findings"][0]["rule"], "python/os-system");
}

#[test]
fn harmless_code_passes_the_gate() {
    let ended = run(&["--screen", "refuse"], "open('p', 'w').close(); print('ran')");
    assert_eq!((ended.code, ended.out().as_str()), (Some(0), "ran\n"), "{ended:?}");
}

#[test]
fn gate_refuses_what_the_language_cannot_read() {
    let ended = run(&["--screen", "refuse"], "print('ran')\ndef f(:\n");
    assert_eq!((ended.code, ended.out().as_str()), (Some(2), ""), "{ended:?}");
    assert!(ended.err().contains("SyntaxError: invalid syntax"), "{ended:?}");
    // Our grammar does not know this, bash does.
    let ended = Program::belljar()
        .args(["run", "--screen", "refuse", "-l", "bash", "-c", "exec 3<>/tmp/x; echo ran"])
        .run();
    assert_eq!(ended.out(), "ran\n", "{ended:?}");
}

#[test]
fn gate_refuses_what_is_too_much_to_read() {
    let code = format!("x = {}1", "-".repeat(50_000));
    let ended = run(&["--screen", "refuse", "--json"], &code);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(ended.json()["error"]["screening"]["findings"][0]["rule"], "unread");
}

#[test]
fn every_text_of_a_run_that_is_code_is_read() {
    let directory = TempDir::new();
    let helper = directory.file("helper.py", "import pty\n");
    let data = directory.file("data.txt", "import pty\n");
    let copies =
        [format!("{}:lib/helper.py", helper.display()), format!("{}:data.txt", data.display())];
    let ended = run(&["--json", "--file", &copies[0], "--file", &copies[1]], "print(1)");
    let findings = ended.json()["screening"]["findings"].clone();
    assert_eq!(findings.as_array().map(Vec::len), Some(1), "{ended:?}");
    assert_eq!(findings[0]["source"], "lib/helper.py");
    // In a workspace: by its path, and not through a link that leads out.
    directory.file("project/main.py", "import pty\n");
    let project = directory.join("project").display().to_string();
    let main = directory.join("project/main.py");
    let entry = |file: &std::path::Path| {
        Program::belljar()
            .args(["run", "--screen", "refuse", "--json", "--workspace", &project])
            .arg(file)
            .run()
    };
    let ended = entry(&main);
    assert_eq!(
        ended.json()["error"]["screening"]["findings"][0]["rule"],
        "python/pty",
        "{ended:?}"
    );
}

#[test]
fn code_in_a_command_is_read() {
    let requests = "{\"command\": [\"bash\", \"-c\", \"r''m -rf /\"], \"screen\": \"refuse\"}\n\
                    {\"command\": [\"python3\", \"-c\", \"import pty\"], \"screen\": \"refuse\"}\n\
                    {\"command\": [\"echo\", \"rm -rf /\"], \"screen\": \"refuse\"}\n";
    let ended = Program::belljar().args(["batch", "--quiet", "-"]).stdin(requests).run();
    let results: Vec<serde_json::Value> =
        ended.out().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(results.len(), 3, "{ended:?}");
    let rule = |at: usize| &results[at]["error"]["screening"]["findings"][0]["rule"];
    assert_eq!((rule(0), rule(1)), (&"bash/rm-root".into(), &"python/pty".into()));
    assert_eq!(results[2]["stdout"], "rm -rf /\n");
}

#[test]
fn own_rules_are_kept() {
    let directory = TempDir::new();
    let rule = "[[rule]]\nid = \"no-math\"\nlanguage = \"python\"\nseverity = \"high\"\n\
                reason = \"counts\"\nmodules = [\"math\"]\n";
    let own = directory.file("own.toml", format!("off = [\"python/os-system\"]\n{rule}"));
    let own = own.display().to_string();
    let options = ["--screen", "refuse", "--screen-rules", &own];
    assert_eq!(run(&options, DANGEROUS).out(), "ran\n");
    let refused = run(&options, "import math");
    assert!(refused.code == Some(2) && refused.err().contains("no-math"), "{refused:?}");
    let listed = Program::belljar().args(["screen", "--list", "--rules", &own]).run();
    assert!(listed.out().contains("no-math") && !listed.out().contains("python/os-system"));
}

#[test]
fn broken_rules_are_told_by_file_rule_and_place() {
    let directory = TempDir::new();
    let rule =
        "[[rule]]\nid = \"mine\"\nlanguage = \"python\"\nseverity = \"low\"\nreason = \"r\"\n";
    for (text, words) in [
        (
            format!("{rule}query = '''\n(call\n  function: (nothing) @found)\n'''\n"),
            "line 2 column 14",
        ),
        (format!("{rule}colour = 1\n"), "colour"),
        (rule.to_owned(), "looks for nothing"),
        ("off = [\"nothing\"]\n".to_owned(), "nothing"),
    ] {
        let path = directory.file("bad.toml", text).display().to_string();
        let ended = run(&["--screen-rules", &path], "print('must not run')");
        assert_eq!((ended.code, ended.out().as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.err().contains("bad.toml") && ended.err().contains(words), "{ended:?}");
    }
}

#[test]
fn hostile_text_cannot_speak_to_the_terminal() {
    let directory = TempDir::new();
    // Never called: what the program says for itself is not the matter here.
    let code = "import os\nif not os: os.system('\u{1b}]0;owned\u{7}\u{202e}')  # \u{9b}2J\n";
    let file = directory.file("tool.py", code);
    for options in
        [&["screen"][..], &["screen", "--json"], &["run"], &["run", "--screen", "refuse"]]
    {
        let shown = Program::belljar().args(options).arg(&file).run_on_terminal();
        let shown = String::from_utf8_lossy(&shown).into_owned();
        assert!(shown.contains("os-system"), "{shown:?}");
        let obeyed = ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}'];
        assert!(!shown.contains(obeyed), "{shown:?}");
    }
}

#[test]
fn help_says_that_it_is_advice() {
    let help = Program::belljar().args(["screen", "--help"]).run();
    assert!(help.out().contains("the sandbox is the wall"), "{help:?}");
    let run = Program::belljar().args(["run", "--help"]).run();
    assert!(run.out().contains("--screen") && run.out().contains("--screen-rules"), "{run:?}");
}
