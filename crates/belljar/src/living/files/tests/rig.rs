//! A root with an agent in it. This very program is started again in new namespaces (by unshare(1), which can while we
//! have threads), pivots into the root, gives up all privileges, begins to attack if it is told to, and serves.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_jail::agent;
use belljar_sys::process::Child;
use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::living::files::{Files, InsidePath, Room};

static COUNT: AtomicU32 = AtomicU32::new(0);
/// In the directory that an agent is started in: what it shall do besides.
const ORDERS: &str = "orders";
pub(super) const SECRET: &[u8] = b"the host's own";

/// A directory `root` that agents have as their root, and one beside it that they must never reach.
pub(super) struct Rig {
    directory: PathBuf,
    children: Arc<Mutex<Vec<Child>>>,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::attacked_by("")
    }

    /// The agents have threads beside them that do this all the time.
    pub(super) fn attacked_by(attack: &str) -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bj-files-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        for below in
            ["root/workspace", "root/tmp", "root/proc", "root/dev", "root/small", "outside"]
        {
            fs::create_dir_all(directory.join(below)).unwrap();
        }
        fs::write(directory.join(ORDERS), attack).unwrap();
        fs::write(directory.join("root/dev/zero"), "").unwrap();
        fs::write(directory.join("outside/secret"), SECRET).unwrap();
        Self { directory, children: Arc::default() }
    }

    pub(super) fn inside(&self, path: &str) -> PathBuf {
        self.directory.join("root").join(path)
    }

    pub(super) fn outside(&self, path: &str) -> PathBuf {
        self.directory.join("outside").join(path)
    }

    pub(super) fn files(&self) -> Files {
        self.files_with(None)
    }

    pub(super) fn files_with(&self, room: Option<Room>) -> Files {
        let (directory, children) = (self.directory.clone(), Arc::clone(&self.children));
        let start = move || {
            let (ours, theirs) = agent::pair().unwrap();
            children.lock().unwrap().push(start(&directory, theirs));
            let started: super::super::Starting = Box::pin(std::future::ready(Ok(ours)));
            started
        };
        let patience = Duration::from_secs(30);
        Files::with_patience(Arc::new(start), Arc::new(move || room), patience)
    }

    /// Ends the agent that was started last, and returns when it is gone.
    pub(super) fn kill_last(&self) {
        let unshare = self.children.lock().unwrap().last().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        let agent: i32 = children.unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(agent).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        for _ in 0..3000 {
            // Reaped by unshare, or about to be.
            let stat = fs::read_to_string(format!("/proc/{agent}/stat"));
            if stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z ")) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        panic!("it lives");
    }

    /// Nothing outside was touched.
    pub(super) fn assert_outside_is_whole(&self) {
        let names: Vec<_> = fs::read_dir(self.outside("")).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(fs::read(self.outside("secret")).unwrap(), SECRET);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Whoever serves ends with its socket; all of them are closed by now.
        for child in self.children.lock().unwrap().drain(..) {
            child.wait();
        }
        let removed = fs::remove_dir_all(&self.directory);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

fn start(directory: &Path, socket: OwnedFd) -> Child {
    let program = std::env::current_exe().unwrap();
    let arguments = [
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--wd",
        directory.to_str().unwrap(),
        program.to_str().unwrap(),
        "living::files::tests::rig::is_the_program_that_agents_are_started_as",
        "--exact",
        "--nocapture",
    ];
    belljar_sys::spawn::with_socket(Path::new("/usr/bin/unshare"), &arguments, socket).unwrap()
}

/// Does nothing unless it was started for it.
#[test]
fn is_the_program_that_agents_are_started_as() {
    let Ok(attack) = fs::read_to_string(ORDERS) else { return };
    let outside = std::env::current_dir().unwrap().join("outside");
    let socket = belljar_sys::fd::take_stdin().unwrap();
    pivot();
    give_up_privileges();
    for act in attacks(&attack, &outside) {
        std::thread::spawn(move || {
            loop {
                act();
            }
        });
    }
    allow_only(agent::CALLS);
    agent::serve(socket)
}

/// From here on any other call ends this process: so every test shows that the list is whole.
fn allow_only(calls: &[&str]) {
    use belljar_sys::seccomp::{Instruction, install};
    let step = |code, jump_true, k| Instruction { code, jump_true, jump_false: 0, k };
    let (load, if_equal, answer) = (0x20, 0x15, 0x06);
    let (allow, kill) = (0x7fff_0000, 0x8000_0000);
    // Names that this architecture has no call for need none.
    let known = calls.iter().filter_map(|name| name.parse::<syscalls::Sysno>().ok());
    let numbers: Vec<u32> = known.map(|call| u32::try_from(call.id()).unwrap()).collect();
    assert!(numbers.len() > calls.len() - 5, "{numbers:?}");
    let mut filter = vec![step(load, 0, 0)];
    for (at, number) in numbers.iter().enumerate() {
        let over = u8::try_from(numbers.len() - at).unwrap();
        filter.push(step(if_equal, over, *number));
    }
    filter.extend([step(answer, 0, kill), step(answer, 0, allow)]);
    install(&filter).unwrap();
}

fn pivot() {
    rustix::mount::mount_bind("root", "root").unwrap();
    rustix::mount::mount_bind("/dev/zero", "root/dev/zero").unwrap();
    let none = MountFlags::empty();
    rustix::mount::mount("proc", "root/proc", "proc", none, None).unwrap();
    let small = c"size=1m,nr_inodes=64";
    rustix::mount::mount("tmpfs", "root/small", "tmpfs", none, Some(small)).unwrap();
    rustix::process::chdir("root").unwrap();
    rustix::process::pivot_root(".", ".").unwrap();
    rustix::mount::unmount(".", UnmountFlags::DETACH).unwrap();
    rustix::process::chdir("/").unwrap();
}

fn give_up_privileges() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, none).unwrap();
    set_no_new_privs(true).unwrap();
}

type Act = Box<dyn Fn() + Send>;

/// Swaps, for ever, what is at a name.
fn swap(one: &'static str, other: &'static str) -> Act {
    Box::new(move || {
        // Whoever is asked to take them away may have done so.
        rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).ok();
    })
}

/// Puts something new in the place of whatever has this name now. It is made under another name first: to write to what is
/// there could be to wait at a FIFO.
fn renew(name: &str, make: impl Fn(&str)) {
    let new = format!("{name}.new");
    fs::remove_file(&new).or_else(|_| fs::remove_dir_all(&new)).ok();
    make(&new);
    if fs::rename(&new, name).is_err() {
        // A directory, or something in the place of one.
        rustix::fs::renameat_with(CWD, &*new, CWD, name, RenameFlags::EXCHANGE).ok();
    }
}

/// What is done for ever, each by a thread.
fn attacks(name: &str, outside: &Path) -> Vec<Act> {
    let outside = outside.to_owned();
    // Others take it away, and each swap may leave two of a kind.
    let remake: Act = Box::new(move || {
        renew("/workspace/d", |new| {
            fs::create_dir(new).ok();
            fs::write(format!("{new}/secret"), "inside").ok();
        });
        // What cannot be made now is made the next time round.
        renew("/workspace/l", |new| {
            symlink(&outside, new).ok();
        });
        renew("/workspace/f", |new| {
            fs::write(new, "inside").ok();
        });
        renew("/workspace/fl", |new| {
            symlink(outside.join("secret"), new).ok();
        });
        renew("/workspace/fifo", |new| {
            let mode = Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(CWD, new, FileType::Fifo, mode, 0).ok();
        });
        // Between two of them there is time for many swaps.
        std::thread::park_timeout(Duration::from_millis(2));
    });
    match name {
        "" => Vec::new(),
        "swaps" => vec![
            remake,
            swap("/workspace/d", "/workspace/l"),
            swap("/workspace/f", "/workspace/fl"),
            swap("/workspace/f", "/workspace/fifo"),
        ],
        "sizes" => vec![Box::new(|| {
            fs::write("/workspace/t/changing", vec![b'x'; 300_000]).ok();
            fs::write("/workspace/t/changing", "short").ok();
            fs::remove_file("/workspace/t/changing").ok();
        })],
        other => panic!("no attack is called {other}"),
    }
}

pub(super) fn path(text: &str) -> InsidePath {
    InsidePath::new(text).unwrap()
}

/// On the test's one runtime: an agent's socket belongs to the one that it was made on.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
