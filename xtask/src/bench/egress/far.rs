//! The far side of the benchmark: a name server that knows one address, a server that echoes, sends and receives, and
//! another's proxy, all on loopback.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{BYTES, CHUNK, NAME};
use crate::shell;

/// What a client says first. None of it looks like TLS or HTTP.
pub(super) const ECHO: &[u8] = b"\x01";
pub(super) const RECEIVE: &[u8] = b"\x02";
pub(super) const SEND: &[u8] = b"\x03";
const PROXY_LIMIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Its threads end with the benchmark.
pub(super) struct Far {
    pub(super) port: u16,
    dns_port: u16,
}

impl Far {
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let dns = UdpSocket::bind("127.0.0.1:0")?;
        let far = Self { port: listener.local_addr()?.port(), dns_port: dns.local_addr()?.port() };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes early is the client's business.
                thread::spawn(move || serve(stream).ok());
            }
        });
        thread::spawn(move || answer(&dns));
        Ok(far)
    }

    /// A settings file that leads there, as the set `bench`, with budgets that do not slow a benchmark.
    pub(super) fn settings(&self, scratch: &Path) -> Result<PathBuf> {
        let path = scratch.join("belljar.toml");
        let text = format!(
            "[network]\nnameservers = [\"127.0.0.1:{}\"]\n[network.budget]\nbytes = {}\n\
             connections_per_second = 1000000\n[egress.bench]\nhosts = [\"{NAME}\"]\n\
             ports = [{}]\naddresses = [\"127.0.0.0/8\"]\n",
            self.dns_port,
            u64::MAX >> 1,
            self.port
        );
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

fn serve(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut word = [0];
    stream.read_exact(&mut word)?;
    let mut bytes = vec![7; CHUNK];
    match &word[..] {
        RECEIVE => {
            for _ in 0..BYTES / u64::try_from(CHUNK)? {
                stream.write_all(&bytes)?;
            }
        }
        SEND => {
            let mut left = BYTES;
            while left > 0 {
                let length = stream.read(&mut bytes)?;
                ensure!(length > 0, "it ended early");
                left = left.saturating_sub(u64::try_from(length)?);
            }
            stream.write_all(&word)?;
        }
        _ => stream.write_all(&word)?,
    }
    Ok(())
}

/// Every name is 127.0.0.1, and has no other address.
fn answer(dns: &UdpSocket) {
    let mut bytes = [0; 1500];
    while let Ok((length, from)) = dns.recv_from(&mut bytes) {
        let question = &bytes[..length];
        let name = question.iter().skip(12).position(|one| *one == 0).map(|end| 12 + end);
        let Some((end, kind)) = name.and_then(|end| Some((end + 5, *question.get(end + 2)?)))
        else {
            continue;
        };
        let Some(asked) = question.get(12..end) else { continue };
        let record: &[u8] = match kind {
            1 => &[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4, 127, 0, 0, 1],
            _ => &[],
        };
        let count = u8::from(kind == 1);
        let head = [question[0], question[1], 0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0];
        // Whoever asked asks again if it is lost.
        dns.send_to(&[&head, asked, record].concat(), from).ok();
    }
}

/// A tinyproxy of ours, ended with the benchmark.
pub(super) struct Proxy {
    child: Child,
    pub(super) port: u16,
}

impl Proxy {
    pub(super) fn start(scratch: &Path) -> Result<Self> {
        // Free a moment ago, and nobody else is at work here.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let settings = scratch.join("tinyproxy.conf");
        let text =
            format!("Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 64\nLogLevel Error\n");
        fs::write(&settings, text)?;
        let mut command = shell::command("tinyproxy");
        command.args(["-d", "-c"]).arg(&settings).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(File::create(scratch.join("tinyproxy.log"))?);
        let child = command.spawn().context("cannot start tinyproxy")?;
        let mut proxy = Self { child, port };
        let deadline = Instant::now() + PROXY_LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = proxy.child.try_wait()? {
                bail!("tinyproxy ended with {status}");
            }
            ensure!(Instant::now() < deadline, "tinyproxy does not listen");
            thread::park_timeout(LOOK_AGAIN);
        }
        Ok(proxy)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
