//! The English of events, all of it: one function for each thing that can be said, so that another
//! language is another file. No logic but the putting together of words.

pub(crate) mod report;

use belljar_jail::egress::Why;

use super::event::Event;
use super::outcome::Stream;
use super::units;

/// Why a run's risk is not low.
pub(crate) fn reason(event: &Event) -> String {
    format!("{}: {}: {}", event.severity.name(), event.kind.name(), event.detail)
}

pub(crate) fn wall_time(elapsed_ms: u64, limit_ms: u64) -> String {
    format!("{elapsed_ms} ms after release, limit {limit_ms}")
}

pub(crate) fn cpu_time(used_ms: u64, limit_ms: u64) -> String {
    format!("{used_ms} ms used, limit {limit_ms}")
}

pub(crate) fn output(bytes: [u64; 2], limit_bytes: u64) -> String {
    format!("{} and {} bytes, limit {limit_bytes}", bytes[0], bytes[1])
}

pub(crate) fn memory(kills: u64, limit_bytes: u64) -> String {
    format!("oom_kill {kills}, limit {limit_bytes} bytes")
}

pub(crate) fn forks(times: u64, limit: u64) -> String {
    format!("{times} forks refused at {limit} processes")
}

pub(crate) fn alien_call() -> String {
    "a call of another architecture, or one that a filter of its own ends".into()
}

pub(crate) fn alien_call_fix() -> String {
    "nothing: 32-bit and x32 calls are never allowed".into()
}

/// The flag that raises a limit in bytes, with twice of it.
pub(crate) fn raise_bytes(flag: &str, limit_bytes: u64) -> String {
    format!("{flag} {}", units::flag_bytes(limit_bytes.saturating_mul(2)))
}

/// The same for a time.
pub(crate) fn raise_ms(flag: &str, limit_ms: u64) -> String {
    format!("{flag} {}", units::flag_ms(limit_ms.saturating_mul(2)))
}

/// The same for a number of things.
pub(crate) fn raise_count(flag: &str, limit: u64) -> String {
    format!("{flag} {}", limit.saturating_mul(2))
}

pub(crate) fn allow_fix(call: &str) -> String {
    format!("--allow-syscall {call}")
}

/// Where one call is of no use without others.
pub(crate) fn allow_all_fix(calls: &[&str]) -> String {
    let all: Vec<String> = calls.iter().map(|call| allow_fix(call)).collect();
    all.join(" ")
}

pub(crate) fn level_fix(call: &str) -> String {
    format!("--level standard, or --allow-syscall {call}")
}

pub(crate) fn not_denied_fix(call: &str) -> String {
    format!("leave out --deny-syscall {call}")
}

pub(crate) fn workspace_fix() -> String {
    "copy files in with --file instead of mounting them with --workspace".into()
}

pub(crate) fn capability_fix() -> String {
    "nothing: the kernel wants a capability for it, and no program has one here".into()
}

pub(crate) fn metadata_fix() -> String {
    "nothing: where a cloud keeps an instance's secrets is never reached from a sandbox".into()
}

pub(crate) fn no_network_fix() -> String {
    "--egress HOST, by name: a sandbox has no network but its own loopback".into()
}

pub(crate) fn connection(address: &str, metadata: bool) -> String {
    let what = if metadata { ", where clouds keep an instance's secrets" } else { "" };
    format!("connect to {address}{what}: there is no way out")
}

/// What the way out refused.
pub(crate) fn egress_refused(why: Why, host: &str, port: u16, detail: &str) -> String {
    let at = if port == 0 { host.to_owned() } else { format!("{host}:{port}") };
    match why {
        Why::Name if port == 0 => format!("asked for the name {host}"),
        Why::Name => format!("connect to {at}, which no rule allows"),
        Why::Port => format!("connect to {at}, a port that no rule allows"),
        Why::Address => {
            format!("connect to {at}, which resolves to {detail}: not a public address")
        }
        Why::Unreachable => format!("connect to {at}: {detail}"),
        Why::Sni => format!("TLS to {at} with another name in its handshake: {detail}"),
        Why::Host => format!("a request to {at} for another host: {detail}"),
        Why::Protocol => format!("connect to {at}: {detail}"),
        Why::Framing => format!("a request to {at} with {detail}"),
        Why::Method | Why::Path => format!("a request to {at}: {detail}"),
        Why::Budget => format!("connect to {at}: the budget of {detail} is used up"),
        Why::Tightened => format!("a connection to {at} was cut when the policy was tightened"),
        Why::Placeholder => format!("the placeholder of {detail} on its way to {at}"),
        Why::Canary => format!("a decoy on its way to {at}"),
        Why::Certificate => format!("{at} is not who it should be: {detail}"),
        Why::Http2 => format!("{at} speaks no HTTP/1.1, which is all that is looked into"),
        Why::Encoded => format!("an answer of {at} that cannot be looked into: {detail}"),
        Why::Distrusted => {
            format!("a program does not believe the sandbox's own authority for {at}: {detail}")
        }
        Why::Crashed => "the egress process crashed: its connections were cut".to_owned(),
    }
}

/// The line that would allow it, or why none would.
pub(crate) fn egress_fix(why: Why, host: &str, port: u16, detail: &str) -> String {
    let at = match port {
        0 | 80 | 443 => host.to_owned(),
        port => format!("{host}:{port}"),
    };
    match why {
        Why::Name | Why::Port | Why::Tightened => format!("--egress {at}"),
        Why::Address => format!(
            "a rule with \"hosts\": [\"{host}\"] and \"addresses\": [\"{detail}\"], if that is meant"
        ),
        Why::Unreachable => "nothing of ours: it does not answer".to_owned(),
        Why::Sni | Why::Host => format!("--egress {detail}, and a connection of its own to it"),
        Why::Protocol if detail.starts_with("TLS, inside which") => {
            "\"inspect\": true in that rule: TLS to the host is ended on the way, and they are seen".to_owned()
        }
        Why::Protocol if detail.starts_with("HTTP/2 alone") => {
            "a client that speaks HTTP/1.1, too, or a rule without inspect and no secret for the host".to_owned()
        }
        Why::Protocol => format!(
            "a rule with \"hosts\": [\"{host}\"], \"ports\": [{port}], \"protocol\": \"tcp\", if that is meant"
        ),
        Why::Framing => "nothing: a request must be readable in one way only".to_owned(),
        Why::Method => "a rule whose methods hold it".to_owned(),
        Why::Path => "a rule whose path_prefixes hold it".to_owned(),
        Why::Budget => "a larger [network.budget] in belljar.toml".to_owned(),
        Why::Placeholder => {
            let name = detail.split(' ').next().unwrap_or_default();
            format!(
                "--secret {name}@{host}, over TLS; with +query and +body outside of headers, too"
            )
        }
        Why::Canary => "nothing: whatever sent it read what it had no use for".to_owned(),
        Why::Certificate => {
            "ca_file in [network] of belljar.toml, if its authority is private".to_owned()
        }
        Why::Http2 | Why::Encoded | Why::Distrusted => {
            format!(
                "exempt {host} in the secret (as !{host}), and have no rule with inspect for it: then TLS to it is not ended"
            )
        }
        Why::Crashed => "nothing: please report it".to_owned(),
    }
}

/// Of a refused call nothing was kept but its name.
pub(crate) fn untold(call: &str) -> String {
    format!("{call}(…): too much had been refused by then to keep its arguments")
}

pub(crate) fn denial_storm(times: u64, most: &str) -> String {
    format!("{times} calls were refused, most of them {most}")
}

pub(crate) fn port_scan(host: &str, ports: usize) -> String {
    format!("connected to {ports} or more different ports of {host}")
}

pub(crate) fn host_scan(hosts: usize) -> String {
    format!("connected to {hosts} or more different hosts")
}

pub(crate) fn fork_storm(times: u64) -> String {
    format!("kept on forking: {times} times after the limit was met")
}

pub(crate) fn pattern_fix() -> String {
    "nothing is refused by this: it is what all of it together looks like".into()
}

/// By its place in the request: the value itself is a secret.
pub(crate) fn canary(place: usize, stream: Stream) -> String {
    let stream = match stream {
        Stream::Stdout => "standard output",
        Stream::Stderr => "standard error",
    };
    format!("canary {place} appeared in {stream}")
}

pub(crate) fn masked(path: &str) -> String {
    format!("opened {path}, over which something empty stands")
}

pub(crate) fn opened(path: &str, to_write: bool) -> String {
    format!("tried to open {path}{}", if to_write { " for writing" } else { "" })
}

pub(crate) fn boundary_fix() -> String {
    "nothing: it belongs to the host, and is not in a sandbox".into()
}
