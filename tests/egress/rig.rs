//! A small internet on loopback: an authoritative name server, and servers for what is spoken.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use belljar_tests::{Outcome, Program, Running, Sandbox, TempDir, children, wait_for};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// What a name is answered with: one list for each time it is asked for, the last for ever.
type Zone = Arc<Mutex<HashMap<String, Vec<Vec<IpAddr>>>>>;

/// The name server, and the settings file that names it.
pub(crate) struct World {
    zone: Zone,
    asked: Arc<Mutex<Vec<String>>>,
    dns_port: u16,
    pub(crate) directory: TempDir,
}

/// Each handshake in the thread of its connection: one that never ends keeps nobody else waiting.
const OVER_TLS: &str = "
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('server.pem', 'server.key')
class Server(http.server.ThreadingHTTPServer):
    def get_request(self):
        stream, address = self.socket.accept()
        return context.wrap_socket(stream, server_side=True, do_handshake_on_connect=False), address
    def handle_error(self, *_): pass
server = Server(('127.0.0.1', 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()";

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl World {
    /// With these names at 127.0.0.1.
    pub(crate) fn with(names: &[&str]) -> Self {
        let (zone, asked) = (Zone::default(), Arc::new(Mutex::new(Vec::new())));
        let (udp, tcp) = both_ports();
        let dns_port = udp.local_addr().expect("an address").port();
        let (for_udp, for_tcp) = ((zone.clone(), asked.clone()), (zone.clone(), asked.clone()));
        thread::spawn(move || {
            let mut bytes = [0; 1500];
            while let Ok((length, from)) = udp.recv_from(&mut bytes) {
                let answer = answer(&bytes[..length], &for_udp.0, &for_udp.1, 1200);
                udp.send_to(&answer, from).ok();
            }
        });
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                answer_stream(stream, &for_tcp.0, &for_tcp.1).ok();
            }
        });
        let world = Self { zone, asked, dns_port, directory: TempDir::new() };
        names.iter().for_each(|name| world.name(name, &[&[LOOPBACK]]));
        world
    }

    pub(crate) fn dns_port(&self) -> u16 {
        self.dns_port
    }

    /// What a name is answered with, time after time.
    pub(crate) fn name(&self, name: &str, answers: &[&[IpAddr]]) {
        let answers = answers.iter().map(|one| one.to_vec()).collect();
        self.zone.lock().expect("whole").insert(name.to_owned(), answers);
    }

    /// Every name that somebody asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("whole").clone()
    }

    /// A settings file with this set, called `test`.
    pub(crate) fn settings(&self, set: &str) -> PathBuf {
        self.settings_with(set, "")
    }

    pub(crate) fn settings_with(&self, set: &str, network: &str) -> PathBuf {
        let text = format!(
            "[network]\nnameservers = [\"127.0.0.1:{}\"]\n{network}\n[egress.test]\n{set}\n",
            self.dns_port
        );
        self.directory.file("belljar.toml", &text)
    }

    /// A sandbox that may reach these hosts, at these ports, on loopback.
    pub(crate) fn sandbox(&self, hosts: &[&str], ports: &[u16]) -> Sandbox {
        self.sandbox_with(&self.rule(hosts, ports, ""))
    }

    pub(crate) fn rule(&self, hosts: &[&str], ports: &[u16], more: &str) -> String {
        format!("hosts = {hosts:?}\nports = {ports:?}\naddresses = [\"127.0.0.0/8\"]\n{more}")
    }

    pub(crate) fn sandbox_with(&self, set: &str) -> Sandbox {
        self.sandbox_of(&self.settings(set))
    }

    pub(crate) fn sandbox_of(&self, settings: &std::path::Path) -> Sandbox {
        let sandbox = Sandbox::standard().alone().host_env("BELLJAR_CONFIG", settings);
        sandbox.with(["--egress", "@test"])
    }

    /// A program of this directory that says its port when it listens.
    pub(crate) fn serve(&self, program: &str, script: &str, arguments: &[&str]) -> (Running, u16) {
        let path = self.directory.file(&format!("serve-{}", script.len()), script);
        let server = Program::new(program).arg(path).args(arguments);
        let mut server = server.directory(&self.directory.join("")).start_interactive();
        let line = server.read_line();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("{line:?} is no port"));
        (server, port)
    }

    /// A web server over TLS, as `server.pem`, that answers as this `Handler` of Python's says.
    pub(crate) fn serve_tls(&self, handler: &str) -> (Running, u16) {
        let script = format!("import http.server, ssl\n{handler}\n{OVER_TLS}");
        self.serve("/usr/bin/python3", &script, &[])
    }

    /// An authority `ca.pem`, and a certificate `server.pem` by it for these names.
    pub(crate) fn certificates(&self, names: &[&str]) {
        let directory = self.directory.join("");
        let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let san = format!("subjectAltName={}", names.join(","));
        let ca =
            ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,digitalSignature"];
        let leaf = [san.as_str(), "basicConstraints=critical,CA:FALSE"];
        for (name, extensions, by) in [("ca", &ca[..], None), ("server", &leaf[..], Some("ca"))] {
            let mut openssl = Program::new("/usr/bin/openssl")
                .directory(&directory)
                .args([
                    "req",
                    "-x509",
                    "-nodes",
                    "-days",
                    "2",
                    "-subj",
                    "/CN=belljar test",
                    "-newkey",
                    "ec",
                ])
                .args([
                    "-pkeyopt",
                    "ec_paramgen_curve:prime256v1",
                    "-keyout",
                    &format!("{name}.key"),
                ])
                .args(["-out", &format!("{name}.pem")]);
            for extension in extensions {
                openssl = openssl.args(["-addext", extension]);
            }
            if let Some(by) = by {
                openssl =
                    openssl.args(["-CA", &format!("{by}.pem"), "-CAkey", &format!("{by}.key")]);
            }
            let ended = openssl.run();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    }
}

/// One port for both kinds.
fn both_ports() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("an address")) {
            return (udp, tcp);
        }
    }
    panic!("no port is free for both");
}

fn answer(question: &[u8], zone: &Zone, asked: &Arc<Mutex<Vec<String>>>, most: usize) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] != 0 {
        let length = usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..=at + length]).into_owned());
        at += 1 + length;
    }
    let (name, kind) = (labels.join(".").to_lowercase(), question[at + 2]);
    asked.lock().expect("whole").push(name.clone());
    let mut zone = zone.lock().expect("whole");
    let known = zone.get_mut(&name);
    let code = if known.is_some() { 0 } else { 3 };
    let found: Vec<IpAddr> = known.map_or_else(Vec::new, |answers| {
        let now = answers[0].clone();
        // Both kinds are asked for at once: the list moves on with one of them.
        if answers.len() > 1 && kind == 1 {
            answers.remove(0);
        }
        now
    });
    let mut records = Vec::new();
    let mut count: u16 = 0;
    for address in found {
        let data = match (address, kind) {
            (IpAddr::V4(four), 1) => four.octets().to_vec(),
            (IpAddr::V6(six), 28) => six.octets().to_vec(),
            _ => continue,
        };
        let length = u8::try_from(data.len()).expect("short");
        records.extend([0xc0, 0x0c, 0, kind, 0, 1, 0, 0, 0, 0, 0, length]);
        records.extend(data);
        count += 1;
    }
    let truncated = records.len() + at + 5 > most;
    if truncated {
        (records, count) = (Vec::new(), 0);
    }
    let mut bytes = question[..2].to_vec();
    bytes.extend([0x81 | if truncated { 2 } else { 0 }, 0x80 | code, 0, 1]);
    bytes.extend(count.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(&question[12..at + 5]);
    bytes.extend(records);
    bytes
}

fn answer_stream(
    mut stream: TcpStream,
    zone: &Zone,
    asked: &Arc<Mutex<Vec<String>>>,
) -> std::io::Result<()> {
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut question = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut question)?;
        let answer = answer(&question, zone, asked, 60_000);
        let length = u16::try_from(answer.len()).expect("it fits");
        stream.write_all(&[&length.to_be_bytes()[..], &answer].concat())?;
    }
}

/// A web server that keeps connections, and remembers what was asked.
pub(crate) struct Web {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Web {
    pub(crate) fn start() -> Self {
        Self::at("127.0.0.1:0")
    }

    pub(crate) fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                thread::spawn(move || serve_web(stream, &kept, port));
            }
        });
        Self { port, requests }
    }

    /// `METHOD TARGET HOST` of every request.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("whole").clone()
    }
}

fn serve_web(stream: TcpStream, requests: &Arc<Mutex<Vec<String>>>, port: u16) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let mut words = line.split_whitespace();
        let (mut method, mut target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (mut host, mut length, mut close, mut chunked) = (String::new(), 0, false, false);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let header = header.trim_end();
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':')?;
            match name.to_ascii_lowercase().as_str() {
                "host" => value.trim().clone_into(&mut host),
                "content-length" => length = value.trim().parse().ok()?,
                "transfer-encoding" => chunked = true,
                // As some servers do.
                "x-http-method-override" => value.trim().clone_into(&mut method),
                "x-original-url" => value.trim().clone_into(&mut target),
                "connection" => close = value.to_ascii_lowercase().contains("close"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        while chunked {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            body.extend(&chunk[..size]);
            chunked = size > 0;
        }
        requests.lock().expect("whole").push(format!("{method} {target} {host}"));
        let answer = match target.strip_prefix("/redirect/") {
            // To the first of them, which goes on with the others.
            Some(to) => {
                let (to, rest) =
                    to.split_once('/').map_or((to, "landed".to_owned()), |(to, rest)| {
                        (to, format!("redirect/{rest}"))
                    });
                format!(
                    "HTTP/1.1 302 Found\r\nLocation: http://{to}:{port}/{rest}\r\nContent-Length: 0\r\n\r\n"
                )
            }
            None => {
                let text = format!("hello from {host}{target} {}", String::from_utf8_lossy(&body));
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
            }
        };
        writer.write_all(answer.as_bytes()).ok()?;
        if close {
            return None;
        }
    }
}

/// Whatever comes goes back; with a greeting first, if there is one.
pub(crate) fn echo(greeting: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                stream.write_all(greeting).ok()?;
                let mut bytes = [0; 4096];
                loop {
                    let length = stream.read(&mut bytes).ok().filter(|length| *length > 0)?;
                    stream.write_all(&bytes[..length]).ok()?;
                }
                #[expect(unreachable_code, reason = "the type of the block")]
                Some(())
            });
        }
    });
    port
}

/// The one event of a rule of the way out.
#[track_caller]
pub(crate) fn refusal<'a>(outcome: &'a Outcome, rule: &str) -> &'a belljar::Event {
    let rule = format!("egress/{rule}");
    let found: Vec<&belljar::Event> =
        outcome.events.iter().filter(|event| event.rule == rule).collect();
    assert_eq!(found.len(), 1, "{rule}: {outcome:#?}");
    found[0]
}

/// A program that says nothing but what it prints, which is this.
pub(crate) fn prints(outcome: &Outcome, text: &str) {
    assert!(outcome.ok() && outcome.stdout.trim_end() == text, "{text:?}: {outcome:#?}");
}

/// The egress process among the descendants of a process.
pub(crate) fn egress_of(pid: u32) -> Option<u32> {
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let below = children(pid);
    below
        .iter()
        .copied()
        .find(|pid| name(*pid).trim() == "belljar-egress")
        .or_else(|| below.into_iter().find_map(egress_of))
}

/// The egress process of the sandbox that lives in this directory.
pub(crate) fn egress_in(directory: &Path) -> u32 {
    let keeper = keeper_of(&directory.join("keeper.sock")).expect("it stands");
    wait_for("the egress process", || egress_of(keeper))
}

/// Who listens at a sandbox's socket.
fn keeper_of(path: &Path) -> Option<u32> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    let keeper = rustix::net::sockopt::socket_peercred(&socket).ok()?.pid;
    Some(keeper.as_raw_nonzero().get().cast_unsigned())
}
