//! What others offer for the same program, where it is installed and works. Each shows the interpreter of the host
//! read-only and has no network; each keeps the limits that it can, at our defaults.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::CODE;
use crate::bench::contenders::{self, Contender, INTERPRETER};
use crate::prereqs::Package;
use crate::shell;

pub(super) const PACKAGES: [Package; 6] = [
    ("bubblewrap", "/usr/bin/bwrap"),
    ("runc", "/usr/sbin/runc"),
    ("crun", "/usr/bin/crun"),
    ("runsc", "/usr/bin/runsc"),
    ("firejail", "/usr/bin/firejail"),
    ("systemd-container", "/usr/bin/systemd-nspawn"),
];
/// Our own defaults, for those that have such limits.
const MEMORY_BYTES: u64 = 512 << 20;
const PIDS: u64 = 64;
const CGROUP: &str = "memory, processes, CPU (cgroup)";
const RLIMITS: &str = "memory of one process, processes (rlimits)";
const NONE: &str = "none";
/// The container that `docker exec` enters.
const RUNNING: &str = "belljar-bench-running";
/// Where firejail leaves mounts on the host, and nobody else has any.
const FIREJAIL_MOUNTS: &str = "/run/firejail/";
const TRIES: usize = 2;

/// One that works here.
pub(super) struct Other {
    pub(super) contender: Contender,
    pub(super) limits: &'static str,
    pub(super) took: Duration,
}

pub(super) struct Others {
    pub(super) present: Vec<Other>,
    /// With the reason.
    pub(super) absent: Vec<(&'static str, String)>,
    image_made: bool,
    container_runs: bool,
    mounts: BTreeSet<String>,
}

impl Others {
    pub(super) fn gather(scratch: &Path) -> Result<Self> {
        let bundle = Bundle::make(scratch)?;
        let mut others = Self {
            present: Vec::new(),
            absent: Vec::new(),
            image_made: false,
            container_runs: false,
            mounts: firejail_mounts(),
        };
        others.admit(NONE, contenders::bwrap(&[INTERPRETER, "-c", CODE]));
        others.admit(CGROUP, bundle.run("runc", &["runc", "run"])?);
        others.admit(CGROUP, bundle.run("crun", &["crun", "run"])?);
        others.admit(CGROUP, bundle.run("runsc", &["runsc", "--network=none", "run"])?);
        others.admit_docker(scratch);
        others.admit(RLIMITS, firejail());
        others.admit(NONE, nspawn(&bundle)?);
        Ok(others)
    }

    fn admit(&mut self, limits: &'static str, contender: Contender) {
        let name = contender.name;
        if let Err(error) = self.attempt(limits, contender) {
            self.absent.push((name, contenders::reason(&error)));
        }
    }

    fn attempt(&mut self, limits: &'static str, contender: Contender) -> Result<()> {
        let mut took = Duration::MAX;
        for _ in 0..TRIES {
            let started = Instant::now();
            shell::output(&mut contender.command())?;
            took = took.min(started.elapsed());
        }
        self.present.push(Other { contender, limits, took });
        Ok(())
    }

    fn admit_docker(&mut self, scratch: &Path) {
        let absent = |error: &anyhow::Error| contenders::reason(error);
        if let Err(error) = contenders::make_docker_image(scratch) {
            let why = absent(&error);
            self.absent.extend([("docker run", why.clone()), ("docker exec", why)]);
            return;
        }
        self.image_made = true;
        let (memory, pids) = (format!("--memory={MEMORY_BYTES}"), format!("--pids-limit={PIDS}"));
        let container = ["--network=none", "--volume=/usr:/usr:ro", "--cpus=1", &memory, &pids];
        let image = contenders::DOCKER_IMAGE;
        let program = [INTERPRETER, "-c", CODE];
        let run = [&["docker", "run", "--rm"], &container[..], &[image], &program].concat();
        self.admit(CGROUP, Contender::new("docker run", &run));
        let mut keep = shell::command("docker");
        keep.args(["run", "--rm", "--detach", "--name", RUNNING]).args(container);
        match shell::output(keep.args([image, INTERPRETER, "-c", "import time; time.sleep(86400)"]))
        {
            Ok(_) => {
                self.container_runs = true;
                let exec = [&["docker", "exec", RUNNING], &program[..]].concat();
                self.admit("those of the container, shared", Contender::new("docker exec", &exec));
            }
            Err(error) => self.absent.push(("docker exec", absent(&error))),
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let complain = |done: Result<String>| {
            if let Err(error) = done {
                shell::complain(format!("{error:#}"));
            }
        };
        if self.container_runs {
            complain(shell::output(shell::command("docker").args(["rm", "--force", RUNNING])));
        }
        if self.image_made {
            let image = contenders::DOCKER_IMAGE;
            complain(shell::output(shell::command("docker").args(["image", "rm", image])));
        }
        for left in firejail_mounts().difference(&self.mounts) {
            complain(shell::output(shell::command("umount").arg(left)));
        }
    }
}

fn firejail_mounts() -> BTreeSet<String> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| point.starts_with(FIREJAIL_MOUNTS)).map(ToOwned::to_owned).collect()
}

fn firejail() -> Contender {
    let (memory, pids) = (format!("--rlimit-as={MEMORY_BYTES}"), format!("--rlimit-nproc={PIDS}"));
    let words = [
        "firejail",
        "--quiet",
        "--noprofile",
        "--net=none",
        "--private",
        "--caps.drop=all",
        "--seccomp",
        "--nonewprivs",
        &memory,
        &pids,
        "--",
        INTERPRETER,
        "-c",
        CODE,
    ];
    Contender::new("firejail", &words)
}

/// Limits would come from a scope that systemd makes, and there may be none to ask.
fn nspawn(bundle: &Bundle) -> Result<Contender> {
    let words = [
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--pipe",
        "--read-only",
        "--private-network",
        "--bind-ro=/usr",
        "--directory",
        &bundle.root()?,
        INTERPRETER,
        "-c",
        CODE,
    ];
    Ok(Contender::new("systemd-nspawn", &words))
}

/// What an OCI runtime is given: a nearly empty root, and the description of what to run in it.
struct Bundle {
    directory: std::path::PathBuf,
}

impl Bundle {
    fn make(scratch: &Path) -> Result<Self> {
        let bundle = Self { directory: scratch.join("bundle") };
        let root = bundle.directory.join("root");
        for directory in ["usr", "proc", "sys", "dev", "etc", "tmp", "run"] {
            fs::create_dir_all(root.join(directory))?;
        }
        for link in ["bin", "lib", "lib64", "sbin"] {
            symlink(format!("usr/{link}"), root.join(link))?;
        }
        // systemd-nspawn takes only a directory that looks like a system for one.
        fs::write(root.join("etc/os-release"), "ID=belljar-bench\n")?;
        let config = serde_json::to_string(&config(&bundle.root()?))?;
        fs::write(bundle.directory.join("config.json"), config)?;
        Ok(bundle)
    }

    fn root(&self) -> Result<String> {
        let root = self.directory.join("root");
        Ok(root.to_str().context("the scratch directory has no UTF-8 name")?.to_owned())
    }

    fn run(&self, name: &'static str, words: &[&str]) -> Result<Contender> {
        let place = self.directory.to_str().context("the scratch directory has no UTF-8 name")?;
        let id = format!("belljar-bench-{}", std::process::id());
        Ok(Contender::new(name, &[words, &["--bundle", place, &id]].concat()))
    }
}

/// The same sandbox as near as an OCI runtime has it: own namespaces, nobody's identity, no capability.
fn config(root: &str) -> Value {
    let none: [&str; 0] = [];
    let resources = json!({
        "memory": {"limit": MEMORY_BYTES}, "pids": {"limit": PIDS},
        "cpu": {"quota": 100_000, "period": 100_000},
    });
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false, "user": {"uid": 65534, "gid": 65534}, "cwd": "/",
            "args": [INTERPRETER, "-c", CODE], "env": ["PATH=/usr/bin", "LANG=C.UTF-8"],
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": none, "effective": none, "permitted": none, "inheritable": none, "ambient": none,
            },
        },
        "root": {"path": root, "readonly": true},
        "hostname": "box",
        "mounts": [
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro", "nosuid", "nodev"]},
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "size=100m"]},
        ],
        "linux": {
            "namespaces": namespaces, "resources": resources,
            "maskedPaths": ["/proc/kcore", "/proc/keys"], "readonlyPaths": ["/proc/sys"],
        },
    })
}
