//! Ways out that work elsewhere: each is shown to work without us first.

use std::net::IpAddr;

use belljar_tests::{Program, wait_until};

use crate::clients::TLS_SERVER;
use crate::requests::TALK;
use crate::rig::{LOOPBACK, Web, World, echo, prints, refusal};

/// Prints what came back of a GET of `/` at each URL, by curl without a proxy.
fn curl(urls: &[String]) -> String {
    let all: Vec<String> = urls.iter().map(|url| format!("'{url}'")).collect();
    format!(
        "for url in {}; do curl -gs -m 10 --noproxy '*' -o /dev/null -w '%{{http_code}} ' \"$url\"; done",
        all.join(" ")
    )
}

pub(crate) fn on_host(code: &str) -> String {
    let ended = Program::new("/bin/bash").args(["-c", code]).run();
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
}

#[test]
fn name_that_moves_to_a_private_address_is_not_followed() {
    let world = World::with(&[]);
    let web = Web::start();
    let port = web.port;
    let control = on_host(&format!(
        "curl -s -m 5 --resolve rebind.test:{port}:127.0.0.1 -o /dev/null -w '%{{http_code}}' http://rebind.test:{port}/"
    ));
    assert_eq!(control, "200");
    let set = format!("hosts = [\"rebind.test\"]\nports = [{port}]");
    for address in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0"] {
        world.name("rebind.test", &[&[address.parse().expect("an address")]]);
        let outcome =
            world.sandbox_with(&set).run_bash(&curl(&[format!("http://rebind.test:{port}/")]));
        assert!(!outcome.stdout.contains("200"), "{address}: {outcome:#?}");
        let event = refusal(&outcome, "address");
        assert!(event.detail.contains(address), "{event:?}");
    }
    for six in
        ["::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "fd00:ec2::254", "fe80::1"]
    {
        world.name("rebind.test", &[&[six.parse().expect("an address")]]);
        let outcome =
            world.sandbox_with(&set).run_bash(&curl(&[format!("http://rebind.test:{port}/")]));
        assert!(!outcome.stdout.contains("200"), "{six}: {outcome:#?}");
        refusal(&outcome, "address");
    }
    assert!(web.requests().len() == 1, "only the control: {:?}", web.requests());
}

#[test]
fn address_literals_in_every_notation_are_refused() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = web.port;
    let reached = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0",
    ];
    // Nobody listens there, or translates: of IPv6 alone, NAT64, 6to4, and the old form of an embedded address.
    let others =
        ["[::1]", "[64:ff9b::7f00:1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[::127.0.0.1]"];
    let url = |host: &&str| format!("http://{host}:{port}/");
    let control = on_host(&curl(&reached.iter().map(url).collect::<Vec<_>>()));
    assert!(control.split_whitespace().all(|code| code == "200"), "{control}");
    let urls: Vec<String> = reached.iter().chain(&others).map(url).collect();
    let before = web.requests().len();
    let sandbox = world.sandbox(&["a.test"], &[port]);
    let direct = sandbox.run_bash(&curl(&urls));
    assert!(!direct.stdout.contains("200"), "{direct:#?}");
    let by_proxy = curl(&urls)
        .replace("--noproxy '*'", "--noproxy none.test --proxy http://198.18.0.1:3128 -p");
    let proxied = sandbox.run_bash(&by_proxy);
    assert!(!proxied.stdout.contains("200"), "{proxied:#?}");
    let socks = curl(&urls)
        .replace("--noproxy '*'", "--noproxy none.test --proxy socks5h://198.18.0.1:1080");
    let socks = sandbox.run_bash(&socks);
    assert!(!socks.stdout.contains("200"), "{socks:#?}");
    assert_eq!(web.requests().len(), before);
}

#[test]
fn connect_to_an_allowed_name_that_is_loopback_is_refused() {
    let (world, web) = (World::with(&["inner.test"]), Web::start());
    let port = web.port;
    let control = on_host(&format!(
        "curl -s -m 5 --resolve inner.test:{port}:127.0.0.1 -o /dev/null -w '%{{http_code}}' http://inner.test:{port}/"
    ));
    assert_eq!(control, "200");
    let sandbox = world.sandbox_with(&format!("hosts = [\"inner.test\"]\nports = [{port}]"));
    let code =
        format!("curl -s -m 10 -p -o /dev/null -w '%{{http_connect}}' http://inner.test:{port}/");
    let outcome = sandbox.run_bash(&code);
    assert_eq!(outcome.stdout.trim(), "403", "{outcome:#?}");
    refusal(&outcome, "address");
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn names_carry_nothing_out() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let code = "
import socket
for i in range(300):
    try: socket.getaddrinfo(f'secret-{i}.tunnel.test', 80)
    except socket.gaierror: pass
print('done')";
    // Whoever may ask the name server tells it what it likes.
    let tunnel = format!(
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); \
         s.sendto(bytes(12) + b'\\x05outer\\x04test\\0\\0\\1\\0\\1', ('127.0.0.1', {})); s.recv(512)",
        world.dns_port()
    );
    let control = Program::new("/usr/bin/python3").args(["-c", &tunnel]).run();
    assert!(control.code == Some(0) && world.asked() == ["outer.test"], "{control:?}");
    let outcome = world.sandbox(&["a.test"], &[web.port]).run_python(code);
    prints(&outcome, "done");
    assert!(!world.asked().iter().any(|name| name.contains("tunnel")), "{:?}", world.asked());
    let counted: u64 = outcome
        .events
        .iter()
        .filter(|event| event.rule == "egress/name")
        .map(|event| event.count)
        .sum();
    assert!(counted >= 300, "{counted}: every one is told, or counted");
    assert!(outcome.events.len() < 300, "{}", outcome.events.len());
}

#[test]
fn another_name_in_the_handshake_is_refused() {
    let world = World::with(&["a.test", "b.test"]);
    world.certificates(&["a.test", "b.test"]);
    let (_server, tls) = world.serve_tls(TLS_SERVER);
    // Both names are served at one address: the allowed one leads to the other.
    let front = |host: &str, connect: &str| {
        format!(
            "curl -s -m 10 -k --noproxy '*' --connect-to {host}:{tls}:{connect}:{tls} https://{host}:{tls}/x; echo \" $?\""
        )
    };
    assert!(on_host(&front("b.test", "127.0.0.1")).starts_with("secure b.test"));
    let sandbox = world.sandbox(&["a.test"], &[tls]);
    prints(&sandbox.run_bash(&front("a.test", "a.test")), &format!("secure a.test:{tls}/x 0"));
    let outcome = sandbox.run_bash(&front("b.test", "a.test"));
    assert!(outcome.stdout.trim() == "35", "{outcome:#?}");
    assert!(refusal(&outcome, "sni").detail.contains("b.test"));
    let tunnelled = format!(
        "curl -s -m 10 -k --connect-to b.test:{tls}:a.test:{tls} https://b.test:{tls}/x; echo $?"
    );
    let outcome = sandbox.run_bash(&tunnelled);
    assert!(!outcome.stdout.contains("secure"), "{outcome:#?}");
    refusal(&outcome, "sni");
    let nameless =
        format!("echo | openssl s_client -connect a.test:{tls} -noservername 2>&1 | grep -c BEGIN");
    let outcome = sandbox.run_bash(&nameless);
    assert_eq!(outcome.stdout.trim(), "0", "{outcome:#?}");
    refusal(&outcome, "sni");
}

#[test]
fn redirect_to_a_forbidden_host_is_not_followed() {
    let (world, web) = (World::with(&["a.test", "b.test"]), Web::start());
    let port = web.port;
    let code = format!(
        "curl -sL -m 10 --noproxy '*' -o /dev/null -w '%{{http_code}}' http://a.test:{port}/redirect/b.test; echo \" $?\""
    );
    let control = on_host(&code.replace(
        "curl",
        &format!("curl --resolve a.test:{port}:127.0.0.1 --resolve b.test:{port}:127.0.0.1"),
    ));
    assert_eq!(control, "200 0");
    let outcome = world.sandbox(&["a.test"], &[port]).run_bash(&code);
    assert!(outcome.stdout.ends_with(" 6\n"), "{outcome:#?}");
    assert_eq!(refusal(&outcome, "name").fix, "--egress b.test");
}

#[test]
fn chain_of_redirects_ends_at_the_first_forbidden_host() {
    let (world, web) = (World::with(&["a.test", "b.test", "evil.test"]), Web::start());
    let port = web.port;
    let get = |way: &str, chain: &str| {
        format!(
            "curl -sL -m 30 {way} -o /dev/null -w '%{{http_code}} %{{num_redirects}}' http://a.test:{port}/redirect/{chain}"
        )
    };
    let here: String =
        ["a", "b", "evil"].map(|one| format!("--resolve {one}.test:{port}:127.0.0.1 ")).concat();
    let chains =
        ["b.test/a.test/evil.test/b.test", "b.test/a.test/127.0.0.1", "b.test/a.test/b.test"];
    for (chain, steps) in chains.iter().zip([4, 3, 3]) {
        assert_eq!(on_host(&get(&here, chain)), format!("200 {steps}"), "{chain}");
    }
    let sandbox = world.sandbox(&["a.test", "b.test"], &[port]);
    prints(&sandbox.run_bash(&get("--noproxy '*'", chains[2])), "200 3");
    prints(&sandbox.run_bash(&get("", chains[2])), "200 3");
    let before = web.requests().len();
    for (chain, rule) in chains.iter().zip(["name", "name"]) {
        // Where there is a proxy, it is the one that says no.
        let told = sandbox.run_bash(&get("--noproxy none.test", chain));
        prints(&told, "403 3");
        refusal(&told, rule);
    }
    let told = sandbox.run_bash(&get("--noproxy '*'", chains[0]));
    assert!(!told.stdout.starts_with("200"), "{told:#?}");
    assert_eq!(refusal(&told, "name").fix, "--egress evil.test");
    let asked = web.requests().split_off(before);
    assert_eq!(asked.len(), 9, "{asked:?}");
    assert!(
        !asked.iter().any(|one| one.contains("landed") || one.contains(" evil.test")),
        "{asked:?}"
    );
}

#[test]
fn datagrams_reach_nobody_and_fail_at_once() {
    let world = World::with(&["a.test"]);
    let code = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)
s.connect(('a.test', 443)); s.send(b'quic?')
try: s.recv(10); print('answered')
except OSError as error: print(error.errno)
try: s.connect(('8.8.8.8', 53)); print('sent')
except OSError as error: print(error.errno)";
    let echo = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = echo.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut bytes = [0; 10];
        while let Ok((length, from)) = echo.recv_from(&mut bytes) {
            echo.send_to(&bytes[..length], from).ok();
        }
    });
    let here = format!("echo quic? >/dev/udp/127.0.0.1/{port} && echo sent");
    assert_eq!(on_host(&here), "sent");
    let here = code.replace("'a.test', 443", &format!("'127.0.0.1', {port}"));
    let here = here.lines().take(5).collect::<Vec<_>>().join("\n") + "\nexcept OSError: pass";
    let control = Program::new("/usr/bin/python3").args(["-c", &here]).run();
    assert_eq!(control.out().trim(), "answered", "{control:?}");
    prints(&world.sandbox(&["a.test"], &[443]).run_python(code), "111\n101");
}

#[test]
fn answer_with_thousands_of_addresses_is_bounded_and_usable() {
    let (world, web) = (World::with(&[]), Web::start());
    // As many as fit into a message, which is fewer than ten thousand.
    let many: Vec<IpAddr> = (0..3500).map(|_| LOOPBACK).collect();
    world.name("many.test", &[&many]);
    // All of them come, to who asks by a stream.
    let ask = format!(
        "import socket, struct; s = socket.create_connection(('127.0.0.1', {}), 60); \
         q = bytes(4) + b'\\0\\1' + bytes(6) + b'\\4many\\4test\\0\\0\\1\\0\\1'; s.sendall(struct.pack('>H', len(q)) + q); \
         a = s.makefile('rb').read(10); print(struct.unpack('>H', a[8:10])[0])",
        world.dns_port()
    );
    let control = Program::new("/usr/bin/python3").args(["-c", &ask]).run();
    assert_eq!(control.out().trim(), "3500", "{control:?}");
    let code = curl(&[format!("http://many.test:{}/", web.port)]);
    prints(&world.sandbox(&["many.test"], &[web.port]).run_bash(&code), "200");
}

#[test]
fn connections_and_bytes_are_bounded() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = echo(b"");
    let set = world.rule(&["a.test"], &[port, web.port], "");
    let few = world.settings_with(&set, "[network.budget]\nconnections = 3");
    let code = curl(&vec![format!("http://a.test:{}/", web.port); 5]);
    let control = on_host(&code.replace("a.test", "127.0.0.1"));
    assert_eq!(control, ["200"; 5].join(" "));
    let outcome = world.sandbox_of(&few).run_bash(&code);
    assert_eq!(outcome.stdout.matches("200").count(), 3, "{outcome:#?}");
    assert!(refusal(&outcome, "budget").detail.contains("connections"));
    let bytes = world.settings_with(&set, "[network.budget]\nbytes = 100000");
    let code = format!(
        "
import socket
s = socket.create_connection(('a.test', {port}), 20); total = 0
try:
    while total < 10_000_000:
        s.sendall(b'x' * 10000); total += len(s.recv(10000)) or 10**9
except OSError: pass
print(total < 10_000_000 or total >= 10**9)
try: socket.create_connection(('a.test', {port}), 20).sendall(b'x'); print('open')
except OSError: print('shut')"
    );
    let here = Program::new("/usr/bin/python3").args(["-c", &code.replace("a.test", "127.0.0.1")]);
    assert_eq!(here.run().out().trim(), "False\nopen", "all of it passes without us");
    let outcome = world.sandbox_of(&bytes).run_python(&code);
    assert!(outcome.stdout.starts_with("True"), "{outcome:#?}");
    refusal(&outcome, "budget");
    let passed: u64 =
        outcome.reached.iter().map(|line| line.sent_bytes + line.received_bytes).sum();
    assert!(passed < 1_000_000, "{passed}");
}

#[test]
fn idle_and_half_open_connections_end_and_others_go_on() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let port = echo(b"");
    let set = world.rule(&["a.test"], &[port, web.port], "");
    let settings =
        world.settings_with(&set, "[network.budget]\nidle_ms = 500\nconnections_at_once = 4");
    let held = format!(
        "import socket; s = socket.create_connection(('127.0.0.1', {port})); s.settimeout(2)\n\
         try: s.recv(1); print('ended')\nexcept TimeoutError: print('open')"
    );
    let control = Program::new("/usr/bin/python3").args(["-c", &held]).run();
    assert_eq!(control.out().trim(), "open", "without us it is held: {control:?}");
    let code = format!(
        "
import socket, urllib.request
held = [socket.create_connection(('a.test', {port}), 20) for _ in range(4)]
for s in held[:2]: s.sendall(b'x'); s.shutdown(socket.SHUT_WR)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
print(opener.open('http://a.test:{}/', timeout=60).status)
for s in held:
    s.settimeout(60)
    try:
        while s.recv(10): pass
    except OSError as error: pass
print('all ended')",
        web.port
    );
    prints(&world.sandbox_of(&settings).run_python(&code), "200\nall ended");
}

#[test]
fn flood_of_connections_is_slowed_and_the_run_ends_in_time() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let set = world.rule(&["a.test"], &[web.port], "");
    let settings = world.settings_with(
        &set,
        "[network.budget]\nconnections_at_once = 8\nconnections_per_second = 20",
    );
    let code = format!("
import socket, time
end, held, made = time.time() + 3, [], 0
while time.time() < end and made < 3000:
    try:
        s = socket.socket(); s.settimeout(0.2); s.connect(('a.test', {})); s.sendall(b'G'); held.append(s)
    except OSError: s.close()
    made += 1
    if len(held) > 200: held.pop(0).close()
print('ended')", web.port);
    let here = code.replace("a.test", "127.0.0.1").replace("'ended'", "made > 1000");
    let control = Program::new("/usr/bin/python3").args(["-c", &here]).run();
    assert_eq!(control.out().trim(), "True", "without us nothing slows it: {control:?}");
    let outcome = world.sandbox_of(&settings).run_python(&code);
    prints(&outcome, "ended");
    assert!(outcome.reached.iter().map(|line| line.connections).sum::<u64>() < 200, "{outcome:?}");
    let after = world
        .sandbox_of(&settings)
        .args([web.port.to_string(), r"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned()]);
    prints(&after.run_python(TALK), "200");
    wait_until("the request came", || web.requests().len() == 1);
}
