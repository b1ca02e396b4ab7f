//! `belljar batch`: many requests, told in order, whatever feeds them.

use belljar_tests::{Program, TempDir};

fn request(code: &str) -> String {
    format!("{}\n", serde_json::json!({ "language": "python", "code": code }))
}

#[test]
fn results_are_told_while_more_requests_are_still_to_come() {
    let mut batch = Program::belljar().args(["batch", "-"]).start_interactive();
    // More than a pipe holds: it must be read although the next request is awaited.
    batch.write(request("print('x' * 300_000)").as_bytes());
    let first: serde_json::Value = serde_json::from_str(&batch.read_line()).expect("an Outcome");
    assert_eq!(first["verdict"]["kind"], "exited", "{first}");
    batch.write(request("print(2)").as_bytes());
    let second: serde_json::Value = serde_json::from_str(&batch.read_line()).expect("an Outcome");
    assert_eq!(second["stdout"], "2\n");
    batch.close_stdin();
    assert_eq!(batch.wait().code, Some(0));
}

#[test]
fn results_come_in_the_order_of_the_input() {
    let slow_first = request("import time; time.sleep(0.5); print(0)") + &request("print(1)");
    let ended = Program::belljar().args(["batch", "--parallel", "2", "-"]).stdin(slow_first).run();
    let out = ended.out();
    let lines: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["stdout"], &lines[1]["stdout"]), (&"0\n".into(), &"1\n".into()));
}

#[test]
fn a_line_that_is_no_request_is_told_in_its_place() {
    let input = request("print(0)") + "{\"colour\": 1}\n\n" + &request("print(2)");
    let ended = Program::belljar().args(["batch", "-"]).stdin(input).run();
    let out = ended.out();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines.len(), ended.code), (3, Some(2)), "{ended:?}");
    assert!(lines[1].contains("line 2") && lines[1].contains("colour"), "{}", lines[1]);
}

#[test]
fn an_input_that_cannot_be_read_ends_the_batch() {
    let directory = TempDir::new();
    let ended = Program::belljar().arg("batch").arg(directory.path()).run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("is a directory"), "{ended:?}");
}

#[test]
fn the_cpu_budget_is_never_exceeded() {
    let limited = |code: &str| {
        let request = serde_json::json!({
            "language": "python", "code": code, "limits": { "cpu_ms": 1000 },
        });
        format!("{request}\n")
    };
    let burn = "while True: pass";
    let input = limited(burn) + &limited(burn) + &limited("print(3)");
    let ended =
        Program::belljar().args(["batch", "--budget-cpu-time", "2500ms", "-"]).stdin(input).run();
    let out = ended.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].contains("cpu_time_limit") && lines[1].contains("cpu_time_limit"), "{out}");
    assert!(lines[2].contains("\"budget\"") && lines[2].contains("cpu_ms is 1000"), "{out}");
}
