//! Who is measured: bare python3, ourselves at three levels, and others where they are installed and work.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{BWRAP, PYTHON, STANDARD};
use crate::shell;

/// Debian's own, for everybody: a version manager's shim on the `PATH` would cost more than any sandbox.
pub(super) const INTERPRETER: &str = "/usr/bin/python3";
const PROGRAM: &str = "print(\"hello\")\n";
/// An image of empty directories and links; the interpreter comes from the host, as it does for bwrap and for us.
pub(super) const DOCKER_IMAGE: &str = "belljar-bench-empty:latest";

/// One way to run the program.
#[derive(Debug, Clone)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) words: Vec<OsString>,
}

/// Everybody.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) present: Vec<Contender>,
    /// With the reason.
    pub(super) absent: Vec<(&'static str, String)>,
    image_made: bool,
}

impl Contender {
    pub(super) fn new(name: &'static str, words: &[&str]) -> Self {
        Self { name, words: words.iter().map(Into::into).collect() }
    }

    pub(super) fn command(&self) -> Command {
        let mut command = shell::command(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }
}

impl Field {
    /// Tries each contender once. Without python3 or ourselves there is nothing to compare; others may be absent.
    pub(super) fn gather(belljar: &Path, scratch: &Path) -> Result<Self> {
        let file = scratch.join("trivial.py");
        fs::write(&file, PROGRAM).with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.to_str().context("the scratch directory has no UTF-8 name")?;
        let belljar = belljar.to_str().context("the path of belljar is not UTF-8")?;

        let mut field = Self { present: Vec::new(), absent: Vec::new(), image_made: false };
        let level = |name, level| Contender::new(name, &[belljar, "run", "--level", level, file]);
        for needed in [
            Contender::new(PYTHON, &[INTERPRETER, file]),
            level("belljar basic", "basic"),
            level(STANDARD, "standard"),
            level("belljar strict", "strict"),
        ] {
            shell::output(&mut needed.command())?;
            field.present.push(needed);
        }
        field.admit(bwrap(&["--ro-bind", file, "/tmp/trivial.py", INTERPRETER, "/tmp/trivial.py"]));
        match make_docker_image(scratch) {
            Ok(()) => {
                field.image_made = true;
                field.admit(docker(file));
            }
            Err(error) => field.absent.push(("docker", reason(&error))),
        }
        field.admit(runsc(file));
        Ok(field)
    }

    fn admit(&mut self, contender: Contender) {
        match shell::output(&mut contender.command()) {
            Ok(_) => self.present.push(contender),
            Err(error) => self.absent.push((contender.name, reason(&error))),
        }
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        if self.image_made
            && let Err(error) =
                shell::output(shell::command("docker").args(["image", "rm", DOCKER_IMAGE]))
        {
            shell::complain(format!("{error:#}"));
        }
    }
}

/// One line: the rest of what a program says about its failure is advice for its own users.
pub(super) fn reason(error: &anyhow::Error) -> String {
    let not_found = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::NotFound;
    if error.root_cause().downcast_ref().is_some_and(not_found) {
        return "not installed".into();
    }
    format!("{error:#}").lines().next().unwrap_or_default().to_owned()
}

/// Namespaces alone: no limits, no filter.
pub(super) fn bwrap(program: &[&str]) -> Contender {
    let words = [
        "bwrap",
        "--unshare-all",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/bin",
        "/bin",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
    ];
    Contender::new(BWRAP, &[&words, program].concat())
}

fn docker(file: &str) -> Contender {
    let program = format!("{file}:/trivial.py:ro");
    let words = [
        "docker",
        "run",
        "--rm",
        "--network=none",
        "--volume=/usr:/usr:ro",
        "--volume",
        &program,
        DOCKER_IMAGE,
        INTERPRETER,
        "/trivial.py",
    ];
    Contender::new("docker", &words)
}

fn runsc(file: &str) -> Contender {
    // Root needs no user namespace of its own; anyone else does.
    let words: &[&str] = if shell::is_root() {
        &["runsc", "--network=none", "do", INTERPRETER, file]
    } else {
        &["runsc", "--rootless", "--network=none", "do", INTERPRETER, file]
    };
    Contender::new("runsc", words)
}

/// Made here, because nothing may be pulled: a file system with the links that a merged /usr has.
pub(super) fn make_docker_image(scratch: &Path) -> Result<()> {
    let (root, archive) = (scratch.join("image"), scratch.join("image.tar"));
    for directory in ["usr", "proc", "sys", "dev", "etc", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    for link in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{link}"), root.join(link))?;
    }
    shell::output(shell::command("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg("."))?;
    shell::output(shell::command("docker").arg("import").arg(&archive).arg(DOCKER_IMAGE))?;
    Ok(())
}
