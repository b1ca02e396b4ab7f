//! Runs belljar under a guard that inherits every process it leaves behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use belljar_tests::{Program, TempDir, belljar_bin, cgroup_directories};
use serde_json::Value;

/// Becomes the subreaper of everything below it, so that what outlives belljar is its child: a look at
/// its own children then finds exactly what this run left, whatever else happens on the host.
const GUARD: &str = r#"
import ctypes, json, os, select, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
out, err = child.communicate()
late, left = [], []
while True:
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        break
    if pid != 0:
        continue
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        pid = int(children.read().split()[0])
    with open(f"/proc/{pid}/stat") as stat:
        late.append(stat.read())
    if not select.select([os.pidfd_open(pid)], [], [], 10)[0]:
        left.append(late[-1])
        os.kill(pid, 9)
    os.waitpid(pid, 0)
print(json.dumps({"pid": child.pid, "code": child.returncode, "late": late, "left": left,
                  "out": out.decode(), "err": err.decode()}))
"#;

/// How a guarded run of belljar ended.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// The process that belljar was, or that started it.
    pub pid: u64,
    pub code: i64,
    pub out: String,
    pub err: String,
    /// Processes that outlived it, if only for a moment.
    late: Value,
    /// Processes that outlived it for good.
    left: Value,
    /// What was there before it: a process may have had its number.
    before: BTreeSet<PathBuf>,
}

impl Guarded {
    /// Runs this command to its end.
    pub(crate) fn run<T: AsRef<std::ffi::OsStr>>(argv: impl IntoIterator<Item = T>) -> Self {
        let before = cgroup_directories();
        let ended = Program::new("/usr/bin/python3").args(["-c", GUARD]).args(argv).run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let told = ended.json();
        let text = |name: &str| told[name].as_str().expect("text").to_owned();
        Self {
            pid: told["pid"].as_u64().expect("a process id"),
            code: told["code"].as_i64().expect("an exit code"),
            out: text("out"),
            err: text("err"),
            late: told["late"].clone(),
            left: told["left"].clone(),
            before,
        }
    }

    /// `belljar run --json` with these options, of a program that would leave a mark if it ran.
    pub(crate) fn belljar(options: &[&str], mark: &Mark) -> Self {
        Self::run(belljar_command(&[], options, mark))
    }

    /// The error that `--json` printed.
    pub(crate) fn error(&self) -> Value {
        let json: Value = serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"));
        assert!(json["error"].is_object(), "{self:?}");
        json["error"].clone()
    }

    /// Nothing of the run is there any more: now, not soon.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.late, Value::Array(Vec::new()), "processes: {self:?}");
        self.assert_clean_soon();
    }

    /// The same for a run whose keeper was killed: what the kernel is ending then is nobody's child that
    /// could wait for it, so it may take a moment. Directories and cgroups may not.
    pub(crate) fn assert_clean_soon(&self) {
        assert_eq!(self.left, Value::Array(Vec::new()), "processes: {self:?}");
        let mine = format!("belljar-{}-", self.pid);
        let of_this_run = |path: &Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&mine))
        };
        let scratch: Vec<PathBuf> =
            scratch_runs().into_iter().filter(|one| of_this_run(one)).collect();
        assert!(scratch.is_empty(), "{scratch:?}: {self:?}");
        let new = cgroup_directories().into_iter().filter(|one| !self.before.contains(one));
        let cgroups: Vec<PathBuf> = new.filter(|one| of_this_run(one)).collect();
        assert!(cgroups.is_empty(), "{cgroups:?}: {self:?}");
    }
}

/// The command line of [`Guarded::belljar`], behind another program.
pub(crate) fn belljar_command(before: &[&str], options: &[&str], mark: &Mark) -> Vec<String> {
    let mut argv: Vec<String> = before.iter().map(|one| (*one).to_owned()).collect();
    argv.push(belljar_bin().display().to_string());
    argv.extend(["run", "--json"].map(str::to_owned));
    argv.extend(options.iter().map(|one| (*one).to_owned()));
    argv.extend(["-c".to_owned(), mark.code()]);
    argv
}

fn scratch_runs() -> Vec<PathBuf> {
    let parent = format!("/tmp/belljar-{}", rustix::process::geteuid().as_raw());
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Shows whether a program ran at all, at levels where it can reach a directory of the host.
pub(crate) struct Mark {
    directory: TempDir,
}

impl Mark {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(directory.path(), open).expect("it is ours");
        Self { directory }
    }

    /// Prints, and writes where it can: both would be seen.
    fn code(&self) -> String {
        let file = self.directory.join("ran").display().to_string();
        format!("print('it ran', flush=True)\ntry:\n open({file:?}, 'w')\nexcept OSError:\n pass")
    }

    pub(crate) fn assert_unmade(&self) {
        assert!(!self.directory.join("ran").exists(), "the program ran");
    }
}
