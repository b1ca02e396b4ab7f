//! Addresses that are not loopback: a host in a network of its own, and this host's own address in it.

use belljar_tests::{Program, TempDir, belljar_bin, is_root};

/// Two networks that this makes, with a cable between them and no other way out. In the far one a server at 11.0.0.2,
/// which is a public address; in the near one, where belljar runs, its own address 11.0.0.1, a server there, and a name
/// server for both.
const NETWORKS: &str = r#"
set -e
directory=$1 belljar=$2; shift 2
far=; trap 'kill $far $(jobs -p) 2>/dev/null' EXIT
ip link set lo up
unshare -n sleep 600 & far=$!
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add near type veth peer name far netns $far
ip addr add 11.0.0.1/24 dev near; ip link set near up
nsenter -t $far -n sh -c 'ip link set lo up; ip addr add 11.0.0.2/24 dev far; ip link set far up'
nsenter -t $far -n python3 -m http.server 8000 --bind 11.0.0.2 --directory $directory/far >/dev/null 2>&1 &
python3 -m http.server 8000 --bind 11.0.0.1 --directory $directory/near >/dev/null 2>&1 &
python3 -c '
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 5300))
while True:
    q, a = s.recvfrom(1500); i = 12
    while q[i]: i += q[i] + 1
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x0b\0\0" + (b"\2" if q[13:16] == b"far" else b"\1") if q[i + 2] == 1 else b""
    s.sendto(q[:2] + b"\x81\x80\0\1" + struct.pack(">H", bool(record)) + bytes(4) + q[12:i + 5] + record, a)' &
get='curl -s -m 10 --noproxy *'; set -f
for n in $(seq 600); do
  $get http://11.0.0.1:8000/word && $get http://11.0.0.2:8000/word && break; sleep 0.1
done | tail -n 2
until python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.sendto(bytes(12) + b"\3far\0\0\1\0\1", ("127.0.0.1", 5300)); s.recv(99)' 2>/dev/null; do :; done
"$@" $belljar run --no-server --allow-missing cgroup --timeout 100s --egress far.test:8000 --egress near.test:8000 --language bash -c '
curl -s -m 30 --noproxy "*" http://far.test:8000/word; curl -s -m 30 --noproxy "*" http://near.test:8000/word || echo refused' 2>$directory/told
"#;

#[test]
fn public_address_is_reached_and_the_hosts_own_is_not() {
    let directory = TempDir::new();
    directory.file("far/word", "from far\n");
    directory.file("near/word", "from near\n");
    let settings = directory.file("belljar.toml", "[network]\nnameservers = [\"127.0.0.1:5300\"]");
    let script = directory.file("networks.sh", NETWORKS);
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // An ordinary user may make networks as root of a user namespace, in which it becomes itself again for belljar.
    let program = Program::new("/usr/bin/unshare").arg(if is_root() { "-n" } else { "-Urn" });
    let program = program.arg("bash").arg(script).arg(directory.path()).arg(belljar_bin());
    let program = if is_root() {
        program.arg("env")
    } else {
        let own = [format!("--map-user={uid}"), format!("--map-group={gid}")];
        program.args(["unshare", "-U"]).args(own)
    };
    let ended = program.env("BELLJAR_CONFIG", settings).run();
    let told = std::fs::read_to_string(directory.join("told")).unwrap_or_default();
    // The control reaches both; then the sandbox one of them.
    let words = "from near\nfrom far\nfrom far\nrefused\n";
    assert_eq!(ended.out(), words, "{ended:?} {told}");
    assert!(told.contains("near.test:8000, which resolves to 11.0.0.1"), "{told}");
}
