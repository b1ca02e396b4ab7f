//! Contexts through the real runtime: what they keep, how they are interrupted, and what outlives whom.

use serde_json::{Value, json};

use crate::http::Connection;
use crate::speaking::Client;
use crate::trees::Served;

#[track_caller]
fn run(served: &Served, request: Value) -> Value {
    ask(&served.client, &request)
}

#[track_caller]
fn ask(client: &Client, request: &Value) -> Value {
    client.post(&Served::at("/code"), request).is(200).json()
}

fn code(language: &str, code: &str) -> Value {
    json!({"language": language, "code": code})
}

fn plain(told: &Value) -> &str {
    told["results"][0]["data"]["text/plain"].as_str().unwrap_or_else(|| panic!("{told}"))
}

/// Sends code and waits until it has said `go`. What is written in pieces is told in pieces: its line may end later.
fn begin(served: &Served, language: &str, text: &str) -> Connection {
    let mut connection = Connection::unix(&served.desk.socket);
    let lines = ("Accept", "application/x-ndjson");
    connection.send(&Served::at("/code"), &[lines], &code(language, text));
    assert_eq!(connection.head().status, 200);
    let mut heard = String::new();
    while !heard.contains("\"go") {
        heard += &String::from_utf8(connection.chunk().expect("it runs")).expect("text");
    }
    connection
}

/// What it came to.
fn end(mut connection: Connection) -> Value {
    let mut heard = Vec::new();
    while let Some(chunk) = connection.chunk() {
        heard.extend(chunk);
    }
    let text = String::from_utf8(heard).expect("text");
    let last = text.lines().last().expect("an end");
    serde_json::from_str(last).expect("JSON")
}

#[test]
fn contexts_of_three_languages_keep_what_they_were_told() {
    let served = Served::new(json!({}));
    for (language, first, second, value) in [
        ("python", "x = 6\ndef f(): return x * 7", "f()", "42"),
        ("node", "const x = 6; function f() { return x * 7 }", "f()", "42"),
    ] {
        assert_eq!(run(&served, code(language, first))["ok"], true);
        assert_eq!(plain(&run(&served, code(language, second))), value);
    }
    run(&served, code("bash", "x=6; cd /tmp; f() { echo $((x * 7)) $PWD; }"));
    assert_eq!(run(&served, code("bash", "f"))["stdout"], "42 /tmp\n");
    let failed = run(&served, code("bash", "(exit 3)"));
    assert_eq!((&failed["error"]["name"], &failed["exit_code"]), (&json!("ExitStatus"), &json!(3)));
    let html = "class A:\n  def _repr_html_(self): return '<b>x</b>'\ndisplay([1, 2]); A()";
    let told = run(&served, code("python", html));
    assert_eq!(told["results"][0]["data"]["text/html"], "<b>x</b>", "{told}");
    assert_eq!(told["results"][1]["data"]["application/json"], json!([1, 2]), "{told}");
    let failed = run(&served, code("python", "def g():\n  1/0\ng()"));
    assert_eq!(failed["error"]["name"], "ZeroDivisionError");
    assert!(
        failed["error"]["traceback"].as_str().is_some_and(|text| text.contains("in g")),
        "{failed}"
    );
}

#[test]
fn figures_are_pictures() {
    let served = Served::new(json!({}));
    let told = run(&served, code("python", "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"));
    assert_eq!(told["error"], Value::Null, "{told}");
    let png = told["results"][0]["data"]["image/png"].as_str().expect("a picture");
    assert!(png.starts_with("iVBORw0KGgo"), "{}", &png[..20]);
}

#[test]
fn contexts_run_at_once_and_apart() {
    let served = Served::new(json!({}));
    let made: Vec<String> = (0..3)
        .map(|_| served.client.post(&Served::at("/contexts"), &json!({"language": "python"})))
        .map(|said| said.is(201).json()["id"].as_str().expect("an id").to_owned())
        .collect();
    // Each waits until all are there: one after the other, nobody would ever come to an end.
    let meet = "import os, time\nopen(f'here-{me}', 'w').close()\n\
                while sum(name.startswith('here-') for name in os.listdir()) < 3: time.sleep(0.01)\nme";
    let values: Vec<String> = std::thread::scope(|scope| {
        let client = &served.client;
        let all: Vec<_> = made
            .iter()
            .enumerate()
            .map(|(number, id)| {
                scope.spawn(move || {
                    ask(client, &json!({"context": id, "code": format!("me = {number}")}));
                    plain(&ask(client, &json!({"context": id, "code": meet}))).to_owned()
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().expect("it ends")).collect()
    });
    assert_eq!(values, ["0", "1", "2"]);
    let listed = served.client.get(&Served::at("/contexts")).json();
    assert_eq!(listed["contexts"].as_array().map(Vec::len), Some(3), "{listed}");
    served.client.delete(&Served::at(&format!("/contexts/{}", made[0]))).is(204);
    let gone = json!({"context": made[0], "code": "1"});
    served.client.post(&Served::at("/code"), &gone).refused(400, "spec");
}

#[test]
fn an_interrupt_ends_the_code_and_a_restart_forgets() {
    let served = Served::new(json!({}));
    for (language, first, busy, kept, value, name) in [
        (
            "python",
            "x = 5",
            "print('go', flush=True)\nwhile True: pass",
            "x",
            "5",
            "KeyboardInterrupt",
        ),
        ("node", "var x = 5", "console.log('go'); while (true) {}", "x", "5", "Interrupted"),
        ("bash", "x=5", "echo go; sleep 1000", "echo $x", "5\n", "Interrupted"),
    ] {
        run(&served, code(language, first));
        let running = begin(&served, language, busy);
        let interrupt = Served::at(&format!("/contexts/{language}/interrupt"));
        let came = served.client.post(&interrupt, &json!({})).is(200).json();
        assert!(["heard", "ended"].contains(&came["outcome"].as_str().expect("a word")), "{came}");
        let told = end(running);
        assert_eq!(told["error"]["name"], name, "{language}: {told}");
        let told = run(&served, code(language, kept));
        let found = if language == "bash" {
            &told["stdout"]
        } else {
            &told["results"][0]["data"]["text/plain"]
        };
        assert_eq!(found, value, "{language}: {told}");
        let restart = Served::at(&format!("/contexts/{language}/restart"));
        served.client.post(&restart, &json!({})).is(204);
        let told = run(&served, code(language, kept));
        let forgotten = told["error"]["name"].is_string() || told["stdout"] == "\n";
        assert!(forgotten, "{language}: {told}");
    }
}

/// Where an interrupt must be heeded, and what it is called then.
const BUSY: [(&str, &str, &str); 6] = [
    ("node", "console.log('go'); require('child_process').execSync('sleep 1000')", "Interrupted"),
    ("node", "console.log('go'); await new Promise(() => {})", "Interrupted"),
    (
        "python",
        "import subprocess; print('go', flush=True); subprocess.run(['sleep', '1000'])",
        "KeyboardInterrupt",
    ),
    (
        "python",
        "import asyncio; print('go', flush=True); await asyncio.sleep(1000)",
        "KeyboardInterrupt",
    ),
    ("bash", "echo go; for i in 1 2 3; do sleep 1000; done", "Interrupted"),
    ("bash", "echo go; sleep 1000 | cat", "Interrupted"),
];

#[test]
fn an_interrupt_is_heeded_wherever_the_code_is_and_meets_no_later_call() {
    let served = Served::new(json!({}));
    for (language, busy, name) in BUSY {
        let running = begin(&served, language, busy);
        let interrupt = Served::at(&format!("/contexts/{language}/interrupt"));
        served.client.post(&interrupt, &json!({})).is(200);
        // One more than is needed does no harm, and finds nothing when it comes too late.
        served.client.post(&interrupt, &json!({})).is(200);
        let told = end(running);
        assert_eq!(told["error"]["name"], name, "{busy}: {told}");
        let word = match language {
            "bash" => "sleep 0.02",
            "node" => "await new Promise((done) => setTimeout(done, 20))",
            _ => "import time; time.sleep(0.02)",
        };
        for _ in 0..3 {
            let told = run(&served, code(language, word));
            assert_eq!(told["error"], Value::Null, "{busy}: {told}");
        }
    }
    let idle = served.client.post(&Served::at("/contexts/bash/interrupt"), &json!({}));
    assert_eq!(idle.is(200).json(), json!({"context": "bash", "outcome": "idle"}));
}

#[test]
fn an_interrupt_in_the_first_moment_of_a_context_is_heeded() {
    let served = Served::new(json!({}));
    for (language, busy, name) in [
        ("bash", "sleep 1000", "Interrupted"),
        ("node", "await new Promise(() => {})", "Interrupted"),
        ("python", "import time; time.sleep(1000)", "KeyboardInterrupt"),
    ] {
        for round in 0..3 {
            let mut running = Connection::unix(&served.desk.socket);
            let lines = ("Accept", "application/x-ndjson");
            running.send(&Served::at("/code"), &[lines], &code(language, busy));
            belljar_tests::wait_until("it is taken up", || {
                let listed = served.client.get(&Served::at("/contexts")).json();
                let all = listed["contexts"].as_array().expect("contexts");
                all.iter().any(|one| one["id"] == language && one["busy"] == true)
            });
            let interrupt = Served::at(&format!("/contexts/{language}/interrupt"));
            belljar_tests::wait_until("it is heard", || {
                served.client.post(&interrupt, &json!({})).is(200).json()["outcome"] != "idle"
            });
            assert_eq!(running.head().status, 200);
            let told = end(running);
            assert_eq!(told["error"]["name"], name, "{language} {round}: {told}");
            // The next one is as fresh as the first.
            served.client.delete(&Served::at(&format!("/contexts/{language}"))).is(204);
        }
    }
}

#[test]
fn contexts_outlive_a_killed_server() {
    let mut served = Served::new(json!({}));
    for (language, text) in [("python", "x = 5"), ("node", "var x = 5"), ("bash", "x=5")] {
        run(&served, code(language, text));
    }
    drop(served.server.take()); // by SIGKILL
    served.server = Some(served.desk.serve());
    for (language, text) in
        [("python", "print(x)"), ("node", "console.log(x)"), ("bash", "echo $x")]
    {
        let told = run(&served, code(language, text));
        assert_eq!((&told["stdout"], &told["restarted"]), (&json!("5\n"), &json!(false)), "{told}");
    }
}

#[test]
fn a_context_that_ate_its_memory_has_died_and_the_next_is_fresh() {
    let served = Served::new(json!({"limits": {"memory_bytes": 96 << 20}}));
    run(&served, code("python", "x = 5"));
    let told = run(&served, code("python", "y = bytearray(600 << 20)\nlen(y)"));
    assert_eq!(told["error"]["name"], "ContextDied", "{told}");
    assert_eq!(told["end"]["verdict"]["kind"], "memory_limit", "{told}");
    let told = run(&served, code("python", "'x' in globals()"));
    assert_eq!((plain(&told), &told["restarted"]), ("False", &json!(true)));
}

#[test]
fn a_paused_context_is_refused_at_once() {
    let served = Served::new(json!({}));
    run(&served, code("python", "x = 5"));
    served.client.post(&Served::at("/pause"), &json!({})).is(200);
    served.client.post(&Served::at("/code"), &code("python", "x")).refused(409, "conflict");
    served
        .client
        .post(&Served::at("/contexts/python/interrupt"), &json!({}))
        .refused(409, "conflict");
    served.client.post(&Served::at("/resume"), &json!({})).is(200);
    assert_eq!(plain(&run(&served, code("python", "x"))), "5");
}
