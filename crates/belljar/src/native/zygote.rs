//! Zygotes: interpreters that were started once, with their usual modules loaded, and copy themselves
//! into sandboxes. One for each language; it holds nobody's data and runs nobody's code.
//!
//! Root's zygotes are not root: each has an unprivileged id of its own, which owns the user namespaces
//! that its copies join.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_jail::wire;
use belljar_sys::process::Child;
use belljar_sys::spawn;

use super::alive::Alive;
use super::host::Host;
use super::line::Line;
use crate::languages::{Interpreter, Language, Warm};
use crate::model::error::Error;

/// What the interpreter loads to be copied; see the crate `belljar-zygote`.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/belljar_zygote.so"));

/// Loading modules takes a second or two on a busy host.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A copy takes a millisecond.
const COPY_LIMIT: Duration = Duration::from_secs(10);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// One zygote. When it is dropped its socket closes and it ends; the sandboxes it made live on.
#[derive(Debug)]
pub(crate) struct Zygote {
    line: Line,
    process: Option<Child>,
    pub ids: Option<(u32, u32)>,
    born: Instant,
    copies: AtomicU64,
    alive: Alive,
}

impl Zygote {
    /// Starts the interpreter and waits until it has loaded what it shall.
    pub(crate) async fn start(
        language: &Language,
        warm: &Warm,
        interpreter: &Interpreter,
        environment: Vec<(String, String)>,
        host: &Host,
        alive: &Alive,
    ) -> Result<Self, Error> {
        let refused = |why: String| Error::Backend {
            operation: "start a zygote",
            source: io::Error::other(format!("{}: {why}", language.name)),
        };
        if is_at_mercy(interpreter, host) {
            // Inside, /proc/self/exe of a copy leads to the host's own file, not to a read-only view.
            let why = "its interpreter belongs to the user whose programs it would run";
            return Err(refused(why.to_owned()));
        }
        let started = Self::spawn(warm, interpreter, environment, host, alive);
        let zygote = started.map_err(|error| refused(error.to_string()))?;
        match zygote.line.ask(|_| Ok(()), START_LIMIT).await {
            Ok(word) if word == b"0" => Ok(zygote),
            Ok(word) if word == b"16" => {
                Err(refused("its modules start threads, so it cannot be copied".to_owned()))
            }
            Ok(word) => Err(refused(format!("error {}", String::from_utf8_lossy(&word)))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(refused(format!("not ready after {} s", START_LIMIT.as_secs())))
            }
            Err(error) => Err(refused(format!("it ended before it was ready ({error})"))),
        }
    }

    fn spawn(
        warm: &Warm,
        interpreter: &Interpreter,
        mut environment: Vec<(String, String)>,
        host: &Host,
        alive: &Alive,
    ) -> io::Result<Self> {
        let args = warm.zygote.iter().map(|one| one.replace("{text}", &warm.text));
        let mut args: Vec<String> = args.chain(warm.modules.iter().cloned()).collect();
        if let Some((path, text)) = &warm.program {
            args.extend(["--".to_owned(), path.clone(), (*text).to_owned()]);
        }
        environment.extend(warm.environment.clone());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let ids = super::zygote_ids(host, number);
        let (line, theirs) = Line::open()?;
        let library = wire::sealed_memory("belljar", LIBRARY)?;
        let process =
            spawn::companion(&interpreter.path, &args, &environment, theirs, library, ids)?;
        alive.started();
        Ok(Self {
            line,
            process: Some(process),
            ids,
            born: Instant::now(),
            copies: AtomicU64::new(0),
            alive: alive.clone(),
        })
    }

    /// Copies itself into a sandbox whose keeper has sent what that takes.
    pub(crate) async fn join(&self, plan: &OwnedFd, joining: &[OwnedFd]) -> io::Result<()> {
        let question = |line: &_| wire::send_joining(line, plan.as_fd(), joining);
        let answer = self.line.ask(question, COPY_LIMIT).await?;
        let errno = answer.try_into().map(i32::from_le_bytes);
        match errno.map_err(|_| io::ErrorKind::InvalidData)? {
            0 => {
                self.copies.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// It can still be asked for copies.
    pub(crate) fn serves(&self) -> bool {
        !self.line.is_dead()
    }

    /// Its layout has been shared by so many, or for so long, that another should take over.
    pub(crate) fn is_worn(&self, most_copies: u64, oldest: Duration) -> bool {
        self.copies.load(Ordering::Relaxed) >= most_copies || self.born.elapsed() >= oldest
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    pub(crate) fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // Closed now, not when the fields are dropped: to a zygote that is the end, which is waited for.
        self.line.close();
        if let Some(process) = self.process.take() {
            self.alive.see_off(process, || {});
        }
    }
}

/// Whether programs of an ordinary user's copies have the file rights to change the interpreter.
fn is_at_mercy(interpreter: &Interpreter, host: &Host) -> bool {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let owned = |one: fs::Metadata| {
        let open_to_all = one.permissions().mode() & 0o022 != 0;
        open_to_all || (!host.is_root() && one.uid() == host.uid)
    };
    fs::metadata(&interpreter.path).map_or(true, owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_interpreter_that_its_programs_could_change_is_at_their_mercy() {
        let path = std::env::temp_dir().join(format!("belljar-mercy-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        let own = rustix::process::geteuid().as_raw();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let mercy = |uid: u32| {
            let interpreter = Interpreter { path: path.clone(), prefix: None };
            is_at_mercy(&interpreter, &Host { uid, ..Host::look() })
        };
        mode(0o755);
        assert!(!mercy(own + 1), "somebody else's");
        assert_eq!(mercy(own), own != 0, "one's own; root's copies are not root");
        for open in [0o775, 0o757] {
            mode(open);
            assert!(mercy(own + 1) && mercy(0), "{open:o}");
        }
        fs::remove_file(&path).unwrap();
        assert!(mercy(own), "one that is not there");
    }
}
