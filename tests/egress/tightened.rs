//! Rules that are tightened while connections are open: nothing goes on that they no longer allow, and it is told when they
//! count.

use belljar_tests::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use crate::clients::TLS_SERVER;
use crate::living::Place;
use crate::rig::{Web, World, echo};

/// Connects, says nothing until there is a file, and then asks over TLS.
const SILENT: &str = "
import os, socket, ssl, sys, time
s = socket.create_connection(('a.test', int(sys.argv[1])), 60); print('open', flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.02)
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
try:
    s = context.wrap_socket(s, server_hostname='a.test')
    s.sendall(b'GET / HTTP/1.1\\r\\nHost: a.test\\r\\n\\r\\n'); print(s.recv(15).decode()[9:12])
except OSError: print('cut')";

#[test]
fn connection_that_is_silent_while_rules_are_tightened_does_not_pass_afterwards() {
    let world = World::with(&["a.test"]);
    world.certificates(&["a.test"]);
    let (_server, tls) = world.serve_tls(TLS_SERVER);
    world.settings(&world.rule(&["a.test"], &[tls], "protocol = \"web\""));
    let place = Place::new(&world);
    place.done(&["sandbox", "create", "box", "--egress", "@test"]);
    let mut control = place.open(SILENT, &[tls.to_string(), "/tmp/first".into()]);
    place.exec("touch /tmp/first");
    assert_eq!(control.read_line().trim(), "200", "as long as it is allowed it passes");
    let mut silent = place.open(SILENT, &[tls.to_string(), "/tmp/second".into()]);
    place.done(&["sandbox", "egress", "box"]);
    place.exec("touch /tmp/second");
    assert_eq!(silent.read_line().trim(), "cut");
}

/// Sends a body that does not end.
const UPLOAD: &str = "
import socket, sys, time
port = int(sys.argv[1])
s = socket.create_connection(('a.test', port), 60)
s.sendall(f'POST /up HTTP/1.1\\r\\nHost: a.test:{port}\\r\\nContent-Length: 1000000\\r\\n\\r\\nx'.encode())
print('open', flush=True)
try:
    while True: s.sendall(b'x'); time.sleep(0.05)
except OSError: print('cut')";

/// Asks twice on one connection, the second time when there is a file.
const KEPT: &str = "
import http.client, os, sys, time
line = http.client.HTTPConnection('a.test', int(sys.argv[1]), timeout=60)
def get():
    line.request('GET', '/down'); answer = line.getresponse(); answer.read(); return answer.status
assert get() == 200; print('open', flush=True)
while not os.path.exists('/tmp/go'): time.sleep(0.02)
try: print(get() if line.sock else 'cut')
except OSError: print('cut')";

/// Waits for what never comes.
const RAW: &str = "
import socket, sys
s = socket.create_connection(('a.test', int(sys.argv[1])), 60); s.settimeout(600)
s.sendall(b'x'); s.recv(1); print('open', flush=True)
try: print('cut' if not s.recv(1) else 'alive')
except OSError: print('cut')";

#[test]
fn open_connections_end_with_the_part_of_a_rule_that_allowed_them() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let raw = echo(b"");
    let both = [web.port, raw];
    world.settings(&world.rule(&["a.test"], &both, ""));
    let place = Place::new(&world);
    place.done(&["sandbox", "create", "box", "--egress", "@test"]);
    let port = [web.port.to_string()];
    let mut upload = place.open(UPLOAD, &port);
    let mut kept = place.open(KEPT, &port);
    let mut echoed = place.open(RAW, &[raw.to_string()]);
    // Another order of the same rules, and more of them, disturbs nobody.
    world.settings(&world.rule(&["b.test", "a.test"], &both, ""));
    place.done(&["sandbox", "egress", "box", "@test"]);
    assert!(upload.is_running() && kept.is_running() && echoed.is_running());
    let get = world.rule(&["a.test"], &[web.port], "methods = [\"GET\"]");
    let raw_too = world.rule(&["a.test"], &[raw], "");
    world.settings(&format!("{get}\n[egress.raw]\n{raw_too}"));
    place.done(&["sandbox", "egress", "box", "@test", "@raw"]);
    assert_eq!(upload.read_line().trim(), "cut", "what is no longer allowed");
    place.exec("touch /tmp/go");
    assert_eq!(kept.read_line().trim(), "200", "what still is goes on");
    // The name stays, and may no longer lead there.
    world.settings(&format!("{get}\n[egress.raw]\nhosts = [\"a.test\"]\nports = [{raw}]"));
    place.done(&["sandbox", "egress", "box", "@test", "@raw"]);
    assert_eq!(echoed.read_line().trim(), "cut");
}

/// Asks for as many different paths on one connection, and for one of them again when there is a file.
const MANY: &str = "
import http.client, os, sys, time
line = http.client.HTTPConnection('a.test', int(sys.argv[1]), timeout=60)
def get(path):
    line.request('GET', path); answer = line.getresponse(); answer.read(); return answer.status
for n in range(int(sys.argv[2])): get(f'/{n}')
print('open', flush=True)
while not os.path.exists('/tmp/go'): time.sleep(0.02)
try: print('alive' if line.sock and get('/0') else 'cut')
except OSError: print('cut')";

#[test]
fn connection_that_asked_for_more_than_is_remembered_ends_when_rules_are_tightened() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    world.settings(&world.rule(&["a.test"], &[web.port], ""));
    let place = Place::new(&world);
    place.done(&["sandbox", "create", "box", "--egress", "@test"]);
    let [mut all, mut more] =
        ["32", "33"].map(|paths| place.open(MANY, &[web.port.to_string(), paths.into()]));
    // Each of those requests is still allowed.
    world.settings(&world.rule(&["a.test"], &[web.port], "methods = [\"GET\"]"));
    place.done(&["sandbox", "egress", "box", "@test"]);
    place.exec("touch /tmp/go");
    assert_eq!(all.read_line().trim(), "alive", "all of its requests are known");
    assert_eq!(more.read_line().trim(), "cut", "one is not");
}

#[test]
fn process_that_does_not_heed_other_rules_is_ended_before_they_are_told_to_count() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    world.settings(&world.rule(&["a.test"], &[web.port], ""));
    let place = Place::new(&world);
    place.done(&["sandbox", "create", "box", "--egress", "@test"]);
    let get = format!(
        "curl -s -m 60 --noproxy '*' -o /dev/null -w '%{{http_code}}' http://a.test:{}/",
        web.port
    );
    assert_eq!(place.exec(&get), "200");
    let first = place.egress();
    place.done(&["sandbox", "egress", "box", "@test"]);
    assert_eq!(place.egress(), first, "one that heeds them goes on");
    let pid = Pid::from_raw(first.cast_signed()).expect("a process");
    kill_process(pid, Signal::STOP).expect("it is ours to stop");
    place.done(&["sandbox", "egress", "box"]);
    wait_until("it is reaped", || !std::path::Path::new(&format!("/proc/{first}")).exists());
    assert_eq!(place.exec(&get), "000");
    place.done(&["sandbox", "egress", "box", "@test"]);
    assert_eq!(place.exec(&get), "200", "another has taken its place");
}
