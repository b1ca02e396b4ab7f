//! The bytes against the specification, and the whole against a real `dbus-daemon`.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::*;

fn hello() -> Call<'static> {
    Call {
        destination: Some("org.freedesktop.DBus"),
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member: "Hello",
        signature: "",
        body: Vec::new(),
    }
}

#[test]
fn a_call_without_arguments_has_the_bytes_of_the_specification() {
    let mut expected = b"l\x01\x02\x01\0\0\0\0\x01\0\0\0\x6d\0\0\0".to_vec();
    expected.extend(b"\x01\x01o\0\x15\0\0\0/org/freedesktop/DBus\0\0\0");
    expected.extend(b"\x02\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0");
    expected.extend(b"\x03\x01s\0\x05\0\0\0Hello\0\0\0");
    expected.extend(b"\x06\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0");
    let bytes = encode(&hello(), 1);
    assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn arrays_and_structures_are_aligned_and_counted() {
    let mut writer = Writer::default();
    writer.string("a").array(8, |all| {
        all.structure().string("k").signature("b").bool(true);
    });
    let expected = b"\x01\0\0\0a\0\0\0\x10\0\0\0\0\0\0\0\x01\0\0\0k\0\x01b\0\0\0\0\x01\0\0\0";
    assert_eq!(writer.finish().escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn an_error_reply_is_read_in_either_byte_order() {
    let little = b"l\x03\x01\x01\x07\0\0\0\x09\0\0\0\x1c\0\0\0\
        \x05\x01u\0\x02\0\0\0\x04\x01s\0\x04\0\0\0e.No\0\0\0\0\x08\x01g\0\0\0\0\0\
        \x02\0\0\0no\0";
    let message = decode(little).unwrap();
    assert_eq!((message.kind, message.reply_to), (Message::ERROR, Some(2)));
    assert_eq!(message.error.as_deref(), Some("e.No"));
    assert_eq!(message.body().string().unwrap(), "no");
    let big = b"B\x03\x01\x01\0\0\0\x07\0\0\0\x09\0\0\0\x08\x05\x01u\0\0\0\0\x02\0\0\0\x02no\0";
    let message = decode(big).unwrap();
    assert_eq!(message.reply_to, Some(2));
    assert_eq!(message.body().string().unwrap(), "no");
}

#[test]
fn a_message_cut_anywhere_is_an_error_and_not_a_panic() {
    let whole = encode(&hello(), 1);
    assert_eq!(decode(&whole).unwrap().member.as_deref(), Some("Hello"));
    for length in 0..whole.len() {
        assert!(decode(&whole[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn a_message_of_absurd_length_is_refused_before_memory_is_taken() {
    let mut head = *b"l\x02\0\x01\0\0\0\0\x01\0\0\0\0\0\0\0";
    assert_eq!(length_after(&head).unwrap(), 0);
    head[6] = 1; // a body of 64 KiB, with nothing left for a field
    assert_eq!(length_after(&head).unwrap(), MAX_MESSAGE_BYTES);
    head[12] = 1;
    assert!(length_after(&head).is_err());
    head = [0xff; FIXED_HEADER_BYTES];
    head[0] = b'B';
    assert!(length_after(&head).is_err());
    head[0] = b'x';
    assert!(length_after(&head).is_err());
}

/// A directory of our own for sockets.
fn directory() -> std::path::PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("dbus-test-{}-{next}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).unwrap();
    directory
}

#[test]
fn a_silent_other_side_costs_no_more_than_the_deadline() {
    let directory = directory();
    let path = directory.join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let started = Instant::now();
    let deadline = started + Duration::from_millis(50);
    let error = Connection::open(&path, 0, deadline).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(listener);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn an_endless_login_line_is_cut() {
    let directory = directory();
    let path = directory.join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let flood = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[b'x'; MAX_LINE_BYTES]).unwrap();
        stream
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    let error = Connection::open(&path, 0, deadline).unwrap_err();
    assert!(error.to_string().contains("endless"), "{error}");
    drop(flood.join().unwrap());
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A session bus of our own, with nothing on it.
struct Daemon {
    child: Child,
    directory: std::path::PathBuf,
}

impl Daemon {
    #[expect(clippy::disallowed_methods, reason = "a test's own daemon, whose output must be read")]
    fn start() -> Self {
        let directory = directory();
        let mut child = Command::new("/usr/bin/dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile", "--print-address"])
            .arg(format!("--address=unix:path={}/bus", directory.display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon starts. hint: apt-get install dbus");
        let mut address = String::new();
        let stdout = child.stdout.take().unwrap();
        // It prints its address when it listens.
        BufReader::new(stdout).read_line(&mut address).unwrap();
        Self { child, directory }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

#[test]
fn a_real_bus_takes_our_login_and_says_that_systemd_is_not_there() {
    let daemon = Daemon::start();
    let bus = daemon.directory.join("bus");
    let uid = rustix::process::geteuid().as_raw();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut connection = Connection::open(&bus, uid, deadline).unwrap();
    let answer = connection.call(&hello()).unwrap();
    assert!(answer.body().string().unwrap().starts_with(":1."));
    // The daemon checks every byte of the body against its signature, and hangs up on a mistake.
    let kind = super::super::BusKind::Daemon;
    let call = super::super::start_transient_unit(kind, "belljar-x.scope", 1);
    let Err(Trouble::Refused { name, text }) = connection.call(&call) else {
        panic!("nobody is there to start a scope");
    };
    assert_eq!(name, "org.freedesktop.DBus.Error.NameHasNoOwner", "{text}");
    assert!(connection.call(&hello()).is_err(), "a second Hello is refused, on a live connection");
}

#[test]
fn a_login_as_somebody_else_is_refused() {
    let daemon = Daemon::start();
    let bus = daemon.directory.join("bus");
    let other = rustix::process::geteuid().as_raw() + 1;
    let deadline = Instant::now() + Duration::from_secs(20);
    let error = Connection::open(&bus, other, deadline).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn a_scope_that_nobody_makes_is_an_error_that_says_what_to_try() {
    let daemon = Daemon::start();
    let bus = super::super::Bus {
        path: daemon.directory.join("bus"),
        kind: super::super::BusKind::Daemon,
    };
    let uid = rustix::process::geteuid().as_raw();
    let error = super::super::start_scope(&[bus], uid, "x", std::process::id()).unwrap_err();
    assert!(error.contains("NameHasNoOwner") && error.contains("systemd-run"), "{error}");
}
