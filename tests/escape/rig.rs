//! A keeper whose system calls lie: under strace a chosen call is skipped and answers with success, or
//! its arguments are changed on the way. So a barrier is silently absent, as on a broken host.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use belljar::{Error, RunRequest};
use belljar_tests::{LEVELS, Level, Outcome, TempDir, belljar_bin, block_on, engine_with};

/// Calls that a rehearsal notes, so that one of them can be named by its text.
const NOTED: &str = "openat,write,fsconfig,move_mount,mount_setattr,prctl,fstat,prlimit64";

/// Spawns a process and writes to nowhere before it becomes the keeper. strace counts the calls of each
/// process: the keeper's own clone is then the second of its process and its first write the ninth, so
/// that its children's can be meant, or not.
const ACT_FIRST: &str = "import os, sys\n\
    try: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n\
    except OSError: pass\n\
    for _ in range(8): os.write(os.open('/dev/null', os.O_WRONLY), b'x')\n\
    os.closerange(3, 16)\n\
    os.execv(sys.argv[1], sys.argv[1:])";

/// Starts the keeper of one run in a way of its own.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    level: Level,
    /// Init and the payload too, or the keeper alone.
    follow: bool,
    acts_first: bool,
    /// A line of shell before the keeper starts.
    before: &'static str,
    /// A program that becomes the keeper.
    through: &'static str,
    /// In strace's words: `call:retval=0:when=2`.
    injected: Vec<String>,
}

impl Rig {
    /// Lies to the keeper, to init and to the payload.
    pub(crate) fn all(level: Level) -> Self {
        Self {
            level,
            follow: true,
            acts_first: false,
            before: "",
            through: "",
            injected: Vec::new(),
        }
    }

    /// Lies to the keeper alone.
    pub(crate) fn keeper(level: Level) -> Self {
        Self { follow: false, ..Self::all(level) }
    }

    pub(crate) fn inject(mut self, what: impl Into<String>) -> Self {
        self.injected.push(what.into());
        self
    }

    pub(crate) fn before(mut self, line: &'static str) -> Self {
        self.before = line;
        self
    }

    pub(crate) fn through(mut self, program: &'static str) -> Self {
        self.through = program;
        self
    }

    pub(crate) fn acting_first(mut self) -> Self {
        self.acts_first = true;
        self
    }

    /// Runs a program that would leave a mark if it ran. Without an Outcome it must not have.
    pub(crate) fn run(&self) -> Result<Outcome, Error> {
        let calls = self.injected.iter().filter_map(|one| one.split(':').next());
        let calls: Vec<&str> = calls.collect();
        let trace = if calls.is_empty() { "none".to_owned() } else { calls.join(",") };
        self.run_noting(&trace, "/dev/null")
    }

    fn run_noting(&self, trace: &str, notes: &str) -> Result<Outcome, Error> {
        let host = TempDir::new();
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(host.path(), open).expect("it is ours");
        let launcher = host.program("launcher", self.script(trace, notes));
        let mark = host.join("ran");
        let code = format!(
            "print('ran', flush=True)\ntry: open({:?}, 'w')\nexcept OSError: pass",
            mark.display().to_string()
        );
        let mut printed = Vec::new();
        let ended = block_on(async {
            let engine = engine_with(|config| config.launcher = launcher);
            let request = RunRequest { level: self.level, ..RunRequest::code("python", code) };
            let run = engine.prepare(request)?;
            run.run(&mut |_, bytes| printed.extend_from_slice(bytes)).await
        });
        if ended.is_err() {
            assert!(printed.is_empty() && !mark.exists(), "it ran: {self:?}");
        }
        ended
    }

    /// Becomes strace, and that the keeper (-D: the tracer is the grandchild): its process id is known.
    fn script(&self, trace: &str, notes: &str) -> String {
        let mut script = format!("#!/bin/sh\n{}\n", self.before);
        let follow = if self.follow { "-f" } else { "" };
        let through = self.through;
        let mut line = format!("exec {through} /usr/bin/strace -D {follow} -qq -s 256 -o {notes}");
        write!(line, " -e trace={trace}").expect("a string takes all");
        for injected in &self.injected {
            write!(line, " -e inject={injected}").expect("a string takes all");
        }
        if self.acts_first {
            write!(line, " /usr/bin/python3 -c \"{ACT_FIRST}\"").expect("a string takes all");
        }
        script.push_str(&line);
        script + &format!(" {} \"$@\"\n", belljar_bin().display())
    }
}

/// Which call of that name in its process the first one with this text is: what strace's `when` wants.
pub(crate) fn nth(level: Level, call: &str, text: &str) -> usize {
    let notes = rehearsal(level);
    let lines: Vec<Call<'_>> = notes.lines().filter_map(Call::parse).collect();
    let at = lines.iter().position(|one| one.name == call && one.text.contains(text));
    let at = at.unwrap_or_else(|| panic!("no {call} with {text}: {notes}"));
    count(&lines, at)
}

/// The first write of a process after it has opened a file of one of these names.
pub(crate) struct Written {
    pub nth: usize,
    pub length: usize,
}

pub(crate) fn written_to(level: Level, files: &[&str]) -> Written {
    let notes = rehearsal(level);
    let lines: Vec<Call<'_>> = notes.lines().filter_map(Call::parse).collect();
    let opened = lines.iter().position(|one| {
        one.name == "openat" && files.iter().any(|file| one.text.contains(&format!("/{file}\"")))
    });
    let opened = opened.unwrap_or_else(|| panic!("{files:?} are not opened: {notes}"));
    let process = lines[opened].process;
    let at = lines[opened..].iter().position(|one| one.name == "write" && one.process == process);
    let at = opened + at.unwrap_or_else(|| panic!("{files:?} are not written: {notes}"));
    // `3, "text", 4) = 4`, or cut short after the length.
    let (_, length) = lines[at].text.rsplit_once("\", ").expect("a write has a length");
    let digits: String = length.chars().take_while(char::is_ascii_digit).collect();
    Written { nth: count(&lines, at), length: digits.parse().expect("a number") }
}

/// Whether the rehearsal has such a call at all.
pub(crate) fn happens(level: Level, call: &str, text: &str) -> bool {
    let mut lines = rehearsal(level).lines().filter_map(Call::parse);
    lines.any(|one| one.name == call && one.text.contains(text))
}

fn count(lines: &[Call<'_>], at: usize) -> usize {
    let same = |one: &&Call<'_>| one.name == lines[at].name && one.process == lines[at].process;
    lines[..=at].iter().filter(same).count()
}

/// One line of strace's notes: `process call(text`.
struct Call<'a> {
    process: &'a str,
    name: &'a str,
    text: &'a str,
}

impl<'a> Call<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (process, rest) = line.split_once(' ')?;
        let (name, text) = rest.trim_start().split_once('(')?;
        // The second half of a call that another process interrupted is not a call of its own.
        (!name.starts_with('<')).then_some(Self { process, name, text })
    }
}

/// The calls of a set-up at this level, noted once for all tests. `prctl` does nothing meanwhile: so our
/// processes stay readable to an ordinary user's strace. The run gets as far as Landlock, which is
/// refused to who may still gain privileges.
fn rehearsal(level: Level) -> &'static str {
    static NOTES: [OnceLock<String>; 4] = [const { OnceLock::new() }; 4];
    let index = LEVELS.iter().position(|one| *one == level).expect("a level that runs");
    NOTES[index].get_or_init(|| {
        let directory = TempDir::new();
        let notes: PathBuf = directory.join("notes");
        let rig = Rig::all(level).inject("prctl:retval=0");
        rig.run_noting(NOTED, &notes.display().to_string()).expect_err("it cannot be released");
        fs::read_to_string(notes).expect("strace took notes")
    })
}
