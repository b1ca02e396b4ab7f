//! A server that has served hundreds of runs of every kind is no larger than one that has served a few.
//! `cargo xtask bench soak` does the same with thousands, and weighs everything.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use belljar_tests::{directories_of, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::Connection;
use crate::running::{Server, python};

const POOL: usize = 4;
const CLIENTS: usize = 4;
/// Runs after which caches, allocators and threads have their size.
const WARM_UP: usize = 100;
const RUNS: usize = 600;
/// What an allocator may keep back. A leak of 16 KiB a run would be more than twice as much.
const ALLOWED_BYTES: u64 = 4 << 20;

/// What could grow.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    descriptors: usize,
    children: usize,
    directories: usize,
}

impl Size {
    fn of(server: &Server) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", server.id())).expect("it runs");
        Self {
            descriptors: descriptors.count(),
            children: server.children().len(),
            directories: directories_of(server.id()).len(),
        }
    }
}

fn memory(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    let kib: u64 = line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("KiB");
    kib << 10
}

/// Its size when nothing comes or goes any more: twice the same, a moment apart.
fn at_rest(server: &Server) -> Size {
    let mut last = Size::of(server);
    wait_until("it is at rest", || {
        thread::park_timeout(Duration::from_millis(100));
        let now = Size::of(server);
        let same = now == last;
        last = now;
        same
    });
    last
}

fn settle(server: &Server) {
    wait_until("the pool is full", || {
        let pool = server.unix().get("/v1/pool", &[("Host", "localhost")]).json();
        pool["waiting"] == json!(POOL) && pool["making"] == json!(0)
    });
}

/// So many runs by all clients together: mostly warm, some cold, failing, too slow, cancelled, mistaken.
fn serve(server: &Server, runs: usize) {
    let socket = &server.socket();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || (client..runs).step_by(CLIENTS).for_each(|one| run(socket, one)));
        }
    });
}

fn run(socket: &Path, number: usize) {
    let mut connection = Connection::unix(socket);
    let mut request = python(&format!("print({number})"));
    let mut expected = json!({ "kind": "exited", "code": 0 });
    match number % 25 {
        3 => request["start"] = json!("cold"),
        7 => {
            request = python("raise SystemExit(3)");
            expected["code"] = json!(3);
        }
        11 => {
            request = python("import time; time.sleep(60)");
            request["limits"] = json!({ "wall_ms": 50 });
            expected = json!({ "kind": "wall_time_limit", "limit_ms": 50 });
        }
        17 => {
            // To drop the connection is to cancel, before the run or in the middle of it.
            connection.send("/v1/runs", &[], &python("import time; time.sleep(60)"));
            return;
        }
        23 => {
            request["language"] = json!("cobol");
            assert_eq!(connection.post("/v1/runs", &[], &request).status, 400);
            return;
        }
        _ => {}
    }
    let outcome: Value = connection.post("/v1/runs", &[], &request).json();
    assert_eq!(outcome["verdict"], expected, "{outcome}");
}

#[test]
fn hundreds_of_runs_leave_the_server_as_small_as_it_was() {
    let pool = POOL.to_string();
    let options = ["--pool", &pool, "--pool-floor", &pool, "--warm", "python", "--max-runs", "4"];
    let server = Server::with(&options);
    settle(&server);
    serve(&server, WARM_UP);
    settle(&server);
    let before = at_rest(&server);
    let memory_before = memory(&server);
    serve(&server, RUNS);
    settle(&server);
    // What a cancelled run had may go a moment after its client, and no longer.
    wait_until(&format!("as before: {before:?}"), || Size::of(&server) == before);
    let grown = memory(&server).saturating_sub(memory_before);
    assert!(grown <= ALLOWED_BYTES, "its memory grew by {grown} bytes");
    let id = server.id();
    server.signal(Signal::TERM);
    let (ended, _) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(directories_of(id), Vec::<PathBuf>::new());
}
