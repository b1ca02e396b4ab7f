//! What the host side puts in place for the probes to reach for, and takes away again.

use belljar_sys::attempt::host::{self, Segment, Victim};
use belljar_sys::attempt::special;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// Descriptors are looked for below this number; the default limit of open files is lower.
pub(super) const MOST_DESCRIPTORS: i32 = 4096;

/// The variable that the victim alone has in its environment.
const CANARY: &str = "BELLJAR_ATTACK_CANARY";

/// What the probes need to know of the host. It goes inside as JSON, so it holds no real secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixture {
    /// The level that the attempts are made at; `outside` for controls.
    pub level: String,
    /// Where probes may write.
    pub scratch: PathBuf,
    /// A readable file of the host, whose text is `canary`.
    pub secret: PathBuf,
    pub canary: String,
    /// The secret's handle, for opening without a path; empty where the file system has none.
    pub secret_handle: Vec<u8>,
    /// Device and inode of the secret.
    pub secret_inode: (u64, u64),
    /// A descriptor on the secret that stays open across exec unless someone closes it.
    pub leaked_fd: i32,
    /// A directory that everyone on the host may write to, with a file `spare` in it.
    pub host_dir: PathBuf,
    /// A process of the same user, with the canary in its environment and the secret's directory
    /// as its working directory.
    pub victim: i32,
    /// The process that prepared all this, and its session.
    pub host_pid: u32,
    pub session: i32,
    /// A listener on 127.0.0.1.
    pub tcp_port: u16,
    pub abstract_name: String,
    pub unix_path: PathBuf,
    /// The key of a shared-memory segment.
    pub segment_key: i32,
    pub hostname: String,
    pub boot_id: String,
    pub home: PathBuf,
    /// The host's control groups other than the root.
    pub cgroups: Vec<String>,
    pub cgroup_file: Option<PathBuf>,
    pub release_agent: Option<PathBuf>,
    pub interface: Option<String>,
    pub disk: Option<PathBuf>,
    /// Digests of the values, since the variables of the host may be anything.
    pub environment: BTreeMap<String, String>,
    pub passwd_digest: String,
    /// Which of the paths that probes try exist on the host.
    pub present: Vec<PathBuf>,
    /// Descriptors that were open before the first probe.
    #[serde(skip)]
    pub open_at_start: Option<Vec<i32>>,
}

/// Owns what was prepared; dropping it removes every file, process, socket and segment.
#[derive(Debug)]
pub struct Prepared {
    fixture: Fixture,
    directory: PathBuf,
    _victim: Victim,
    _leaked: File,
    _tcp: TcpListener,
    _abstract: UnixListener,
    _pathname: UnixListener,
    _segment: Option<Segment>,
}

impl Fixture {
    /// Puts everything in place, under a directory `belljar-attack-*` of /tmp.
    pub fn prepare() -> io::Result<Prepared> {
        let canary = random_hex()?;
        let directory =
            PathBuf::from(format!("/tmp/belljar-attack-{}", canary.get(..16).unwrap_or("0")));
        fs::DirBuilder::new().mode(0o755).create(&directory)?;
        // From here on a failure must still remove the directory.
        Prepared::fill(&directory, canary).inspect_err(|_| {
            let _gone = fs::remove_dir_all(&directory);
        })
    }

    /// True for controls, where nothing stands between the probe and the host.
    pub(super) fn is_outside(&self) -> bool {
        self.level == "outside"
    }

    /// The process whose view of the world is worth having: the first one. Outside, the victim
    /// stands in for it, because even root may be kept off the real one.
    pub(super) fn init(&self) -> i32 {
        if self.is_outside() { self.victim } else { 1 }
    }

    /// Removes what a probe may have left in the scratch directory.
    pub(super) fn clear_scratch(&self) {
        // Nothing there is the usual case.
        let _gone = fs::remove_dir_all(self.scratch.join(MARK));
    }

    /// A directory of the probe's own under the scratch directory, empty.
    pub(super) fn own_scratch(&self) -> io::Result<PathBuf> {
        self.clear_scratch();
        let own = self.scratch.join(MARK);
        fs::create_dir(&own)?;
        Ok(own)
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.present.iter().any(|present| present == Path::new(path))
    }
}

const MARK: &str = "belljar-attack";

impl Prepared {
    /// What a run at that level is told.
    pub fn at(&self, level: &str) -> Fixture {
        Fixture { level: level.to_owned(), ..self.fixture.clone() }
    }

    /// What a control is told.
    pub fn outside(&self) -> Fixture {
        self.at("outside")
    }

    fn fill(directory: &Path, canary: String) -> io::Result<Self> {
        let secret = directory.join("secret");
        write_with_mode(&secret, &canary, 0o644)?;
        let host_dir = directory.join("open");
        fs::create_dir(&host_dir)?;
        fs::set_permissions(&host_dir, Permissions::from_mode(0o777))?;
        write_with_mode(&host_dir.join("spare"), "spare", 0o666)?;
        let scratch = directory.join("scratch");
        fs::create_dir(&scratch)?;
        let victim = Victim::start(directory, CANARY, &canary)?;
        let leaked = File::open(&secret)?;
        let leaked = host::leak_across_exec(&leaked).map_err(|_| io::Error::last_os_error())?;
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        let abstract_name = format!("belljar-attack-{canary}");
        let abstract_socket =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?;
        let unix_path = directory.join("socket");
        let pathname = UnixListener::bind(&unix_path)?;
        fs::set_permissions(&unix_path, Permissions::from_mode(0o777))?;
        let segment_key =
            i32::from_str_radix(canary.get(..7).unwrap_or("1"), 16).unwrap_or(1).max(1);
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()));
        let metadata = fs::metadata(&secret)?;
        let fixture = Fixture {
            level: "outside".to_owned(),
            scratch,
            secret_handle: host::handle_of(&secret.to_string_lossy()).unwrap_or_default(),
            secret_inode: (metadata.dev(), metadata.ino()),
            secret,
            canary,
            leaked_fd: leaked.as_raw_fd(),
            host_dir,
            victim: victim.pid(),
            host_pid: std::process::id(),
            session: special::session().unwrap_or(-1),
            tcp_port: tcp.local_addr()?.port(),
            abstract_name,
            unix_path,
            segment_key,
            hostname: host::hostname(),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            present: present(&home),
            home,
            cgroups: cgroups(),
            cgroup_file: cgroup_file("cgroup.procs"),
            release_agent: cgroup_file("release_agent"),
            interface: interface(),
            disk: disk(),
            environment: environment(),
            passwd_digest: digest(text("/etc/passwd").as_bytes()),
            open_at_start: None,
        };
        Ok(Prepared {
            fixture,
            directory: directory.to_owned(),
            _victim: victim,
            _leaked: leaked,
            _tcp: tcp,
            _abstract: abstract_socket,
            _pathname: pathname,
            _segment: Segment::make(segment_key).ok(),
        })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // A drop cannot report; the name tells whoever finds a rest of it where it came from.
        let _gone = fs::remove_dir_all(&self.directory);
    }
}

/// SHA-256 in hexadecimal.
pub(super) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write_with_mode(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Paths whose absence on the host makes a probe pointless.
fn present(home: &Path) -> Vec<PathBuf> {
    const TRIED: [&str; 17] = [
        "/etc/shadow",
        "/root",
        "/run",
        "/etc/machine-id",
        "/sys/kernel",
        "/dev/mem",
        "/dev/kvm",
        "/dev/kmsg",
        "/dev/fuse",
        "/dev/net/tun",
        "/dev/loop-control",
        "/proc/keys",
        "/proc/kcore",
        "/proc/sysrq-trigger",
        "/proc/kallsyms",
        "/var/run/docker.sock",
        "/run/dbus/system_bus_socket",
    ];
    let mut tried: Vec<PathBuf> = TRIED.iter().map(PathBuf::from).collect();
    // A home that a sandbox has as well says nothing about the host's.
    let shared =
        ["/", "/tmp", "/workspace", "/home/sandbox"].iter().any(|at| home == Path::new(at));
    if !shared && !home.starts_with("/usr") {
        tried.extend([home.to_owned(), home.join(".ssh")]);
    }
    tried.retain(|path| path.exists());
    tried
}

fn cgroups() -> Vec<String> {
    let own = text("/proc/self/cgroup");
    let paths = own.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter(|path| *path != "/").map(str::to_owned).collect()
}

/// A file of that name at the root of a mounted hierarchy.
fn cgroup_file(name: &str) -> Option<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    std::iter::once(root.to_owned()).chain(below).map(|dir| dir.join(name)).find(|at| at.exists())
}

fn interface() -> Option<String> {
    let all = fs::read_dir("/sys/class/net").ok()?.flatten();
    all.filter_map(|entry| entry.file_name().into_string().ok()).find(|name| name != "lo")
}

/// A disk, if possible one that this user can open: some hosts keep even root off the others.
fn disk() -> Option<PathBuf> {
    const NAMES: [&str; 7] = ["vd", "sd", "nvme", "xvd", "mmcblk", "dm-", "loop"];
    let is_disk = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        NAMES.iter().any(|start| name.starts_with(start))
            && fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
    };
    let entries = fs::read_dir("/dev").ok()?.flatten().map(|entry| entry.path());
    let disks: Vec<PathBuf> = entries.filter(is_disk).collect();
    disks.iter().find(|path| File::open(path).is_ok()).or(disks.first()).cloned()
}

/// Variables that a built environment may well have in common with the host's.
fn environment() -> BTreeMap<String, String> {
    const COMMON: [&str; 12] = [
        "PATH", "HOME", "LANG", "LC_ALL", "TERM", "PWD", "SHLVL", "USER", "LOGNAME", "TMPDIR",
        "SHELL", "_",
    ];
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let counts = !COMMON.contains(&name.as_str()) && !value.is_empty();
        counts.then(|| (name, digest(value.as_encoded_bytes())))
    });
    all.take(256).collect()
}
