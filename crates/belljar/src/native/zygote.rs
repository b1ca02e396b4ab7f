//! Zygotes: interpreters that were started once, with their usual modules loaded, and copy themselves
//! into sandboxes. One for each language; it holds nobody's data and runs nobody's code.
//!
//! Root's zygotes are not root: each has an unprivileged id of its own and a cgroup directory that was
//! given to that id, and makes sandboxes as any ordinary user does.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_jail::plan::{CgroupVersion, Place};
use belljar_jail::wire;
use belljar_sys::process::Child;
use belljar_sys::{fd, spawn};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::Mutex;

use super::alive::Alive;
use super::cgroups::{Cgroups, PlaceOf, Places};
use super::host::Host;
use super::run::Spare;
use super::sweep;
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
    /// Wishes and answers come in pairs, so one at a time. Gone once an answer was not waited for to its
    /// end: it would be taken for the next one's.
    control: Mutex<Option<UnixDatagram>>,
    process: Option<Child>,
    pub ids: Option<(u32, u32)>,
    grounds: Option<Arc<Grounds>>,
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
        match zygote.ask(None, START_LIMIT).await {
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

    /// Sends a wish, if there is one, and hears the answer. Whoever does not wait for it takes the socket
    /// along, and with it the zygote; another is started then.
    async fn ask(&self, wish: Option<OwnedFd>, limit: Duration) -> io::Result<Vec<u8>> {
        let mut place = self.control.lock().await;
        let control = place.take().ok_or(io::ErrorKind::BrokenPipe)?;
        if let Some(wish) = wish {
            fd::send(&control, b"copy", &[wish.as_fd()])?;
        }
        let heard = tokio::time::timeout(limit, hear(&control)).await;
        let answer = heard.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        *place = Some(control);
        Ok(answer)
    }

    fn spawn(
        warm: &Warm,
        interpreter: &Interpreter,
        mut environment: Vec<(String, String)>,
        host: &Host,
        alive: &Alive,
    ) -> io::Result<Self> {
        let args = warm.zygote.iter().map(|one| one.replace("{text}", &warm.text));
        let args: Vec<String> = args.chain(warm.modules.iter().cloned()).collect();
        environment.extend(warm.environment.clone());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let ids = super::zygote_ids(host, number);
        let (control, theirs) = wire::control_pair()?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let library = wire::sealed_memory("belljar", LIBRARY)?;
        let process =
            spawn::companion(&interpreter.path, &args, &environment, theirs, library, ids)?;
        alive.started();
        let mut zygote = Self {
            control: Mutex::new(Some(UnixDatagram::from_std(control.into())?)),
            process: Some(process),
            ids,
            grounds: None,
            born: Instant::now(),
            copies: AtomicU64::new(0),
            alive: alive.clone(),
        };
        if let (Some(ids), Cgroups::Ready(places), Some(process)) =
            (ids, &host.cgroups, &zygote.process)
        {
            zygote.grounds = Some(Arc::new(Grounds::lay(places, ids, process.id())?));
        }
        Ok(zygote)
    }

    /// Copies itself: the copy is a keeper of ours.
    pub(crate) async fn copy(&self) -> io::Result<Spare> {
        let (control, theirs) = wire::control_pair()?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let answer = self.ask(Some(theirs), COPY_LIMIT).await?;
        let number = answer.try_into().map(u32::from_le_bytes).ok();
        let child = number.and_then(Child::new).ok_or(io::ErrorKind::InvalidData)?;
        self.copies.fetch_add(1, Ordering::Relaxed);
        Ok(Spare::of(control, child, &self.alive))
    }

    /// Where its copies make their cgroups, if not where the host's others do.
    pub(crate) fn grounds(&self) -> Option<Arc<Grounds>> {
        self.grounds.clone()
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
        self.control.get_mut().take();
        if let Some(process) = self.process.take() {
            let grounds = self.grounds.take();
            self.alive.see_off(process, move || drop(grounds));
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

/// One message; an error when the zygote is gone.
async fn hear(control: &UnixDatagram) -> io::Result<Vec<u8>> {
    let mut word = [0; 64];
    loop {
        control.readable().await?;
        let read = || Ok(fd::receive(control, &mut word)?);
        match control.try_io(Interest::READABLE, read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(received) if received.length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            result => return result.map(|received| word[..received.length].to_vec()),
        }
    }
}

/// Cgroup directories that were given to a zygote's id. Removed with the last who uses them.
#[derive(Debug)]
pub(crate) struct Grounds {
    pub places: Places,
    made: Vec<PathBuf>,
}

impl Grounds {
    fn lay(places: &Places, (uid, gid): (u32, u32), zygote: u32) -> io::Result<Self> {
        let name = sweep::name(&format!("zygote-{zygote}"));
        let mut grounds = Self { places: Places { all: Vec::new() }, made: Vec::new() };
        for place in &places.all {
            let Place::Beneath(directory) = &place.place else {
                return Err(io::Error::other("a scope cannot be handed on"));
            };
            let own = directory.join(&name);
            fs::create_dir(&own)?;
            grounds.made.push(own.clone());
            if place.version == CgroupVersion::V2 {
                grounds.settle(place, &own, zygote, (uid, gid))?;
            }
            chown(&own, Some(uid), Some(gid))?;
            grounds.places.all.push(PlaceOf { place: Place::Beneath(own), ..place.clone() });
        }
        Ok(grounds)
    }

    /// On v2 a process moves only by leave of the nearest cgroup above both places, so the zygote must
    /// live below its own directory; and that must hand the controllers on.
    fn settle(
        &mut self,
        place: &PlaceOf,
        own: &std::path::Path,
        zygote: u32,
        (uid, gid): (u32, u32),
    ) -> io::Result<()> {
        let switches: Vec<String> =
            place.controllers.iter().map(|one| format!("+{}", one.name())).collect();
        let leaf = own.join("zygote");
        fs::create_dir(&leaf)?;
        self.made.push(leaf.clone());
        fs::write(leaf.join("cgroup.procs"), zygote.to_string())?;
        fs::write(own.join("cgroup.subtree_control"), switches.join(" "))?;
        for file in ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(own.join(file), Some(uid), Some(gid))?;
        }
        // Copies are born next to the zygote's leaf, which they leave.
        chown(leaf.join("cgroup.procs"), Some(uid), Some(gid))
    }
}

impl Drop for Grounds {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            // Still in use: the sweep at the next start takes it.
            fs::remove_dir(path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// One whose other end is in the test's hands.
    fn made_up() -> (Zygote, OwnedFd) {
        let (control, theirs) = wire::control_pair().unwrap();
        rustix::io::ioctl_fionbio(&control, true).unwrap();
        let zygote = Zygote {
            control: Mutex::new(Some(UnixDatagram::from_std(control.into()).unwrap())),
            process: None,
            ids: None,
            grounds: None,
            born: Instant::now(),
            copies: AtomicU64::new(0),
            alive: Alive::default(),
        };
        (zygote, theirs)
    }

    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_not_the_next_ones() {
        let (zygote, theirs) = made_up();
        fd::send(&theirs, b"first", &[]).unwrap();
        assert_eq!(zygote.ask(None, COPY_LIMIT).await.unwrap(), b"first");
        let given_up = zygote.ask(None, Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
        // The late answer finds nobody, and the zygote is told to end.
        assert_eq!(fd::send(&theirs, b"late", &[]), Err(belljar_sys::Errno::PIPE));
        let next = zygote.ask(None, COPY_LIMIT).await.unwrap_err();
        assert_eq!(next.kind(), io::ErrorKind::BrokenPipe);
    }

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
