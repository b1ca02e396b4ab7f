//! `belljar secret`: values that are kept encrypted, and given by name.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use belljar::secrets::{Secret, SecretPlaces, SecretStore, StoredName};
use belljar::{SecretRequest, SpecError};
use belljar_server::places as default_places;
use belljar_sys::signal::hear_stop;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::Serialize;

use crate::args::secret::{Secret as Arguments, SecretCommand};
use crate::render;

/// No value is longer; one byte more shows that it was.
const MOST_BYTES: u64 = (64 << 10) + 2;

/// Where secrets are for what runs in this process.
pub(super) fn places(state: Option<&Path>) -> SecretPlaces {
    let state = state.map(Path::to_owned).or_else(default_places::state);
    SecretPlaces { state, ..SecretPlaces::default() }
}

/// Secrets as they were typed. Not read by the parser of arguments, which would repeat a wrong one.
pub(super) fn asked(typed: &[String]) -> Result<Vec<SecretRequest>, SpecError> {
    typed.iter().map(|one| one.parse()).collect()
}

pub(crate) async fn secret(args: Arguments) -> u8 {
    let places = places(args.state.as_deref());
    let Some(store) = places.store() else {
        let why = "the state directory has no default without HOME: give --state DIR";
        return render::trouble(why, render::BAD_REQUEST);
    };
    let done = match args.command {
        SecretCommand::Set { name } => {
            let done = set(&store, &name);
            if let (Ok(_), Some(state)) = (&done, &places.state) {
                // Where a placeholder stands for it the new value counts at once.
                belljar::runtime::renew_secrets(state, &places).await;
            }
            done
        }
        SecretCommand::List { json } => list(&store, &places, json),
        SecretCommand::Remove { name } => match store.remove(&name) {
            Ok(true) => Ok(0),
            Ok(false) => Err(format!("no secret of that name is kept: {name}")),
            Err(why) => Err(why),
        },
    };
    done.unwrap_or_else(|why| render::trouble(&why, render::BAD_REQUEST))
}

fn set(store: &SecretStore, name: &str) -> Result<u8, String> {
    let value = if io::stdin().is_terminal() { ask(name)? } else { read_all()? };
    let value = Secret::for_program(value).map_err(|why| format!("the value {why}"))?;
    store.set(name, value)?;
    Ok(0)
}

fn read_all() -> Result<Vec<u8>, String> {
    let mut value = Vec::new();
    let read = io::stdin().lock().take(MOST_BYTES).read_to_end(&mut value);
    read.map_err(|error| format!("the value cannot be read: {error}"))?;
    Ok(value)
}

/// Asks on the terminal, which shows nothing meanwhile. Whoever interrupts us gets it back as it was.
fn ask(name: &str) -> Result<Vec<u8>, String> {
    let told = |error: io::Error| format!("the terminal cannot be used: {error}");
    let terminal = io::stdin();
    let before = tcgetattr(&terminal).map_err(|errno| told(errno.into()))?;
    let stop = hear_stop().map_err(|errno| told(errno.into()))?;
    let silent = Silent::begin(&before).map_err(told)?;
    let mut words = io::stderr().lock();
    write!(words, "value of {name} (it is not shown): ")
        .and_then(|()| words.flush())
        .map_err(told)?;
    let mut waited = [
        PollFd::new(&terminal, PollFlags::IN),
        PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
    ];
    rustix::io::retry_on_intr(|| poll(&mut waited, None)).map_err(|errno| told(errno.into()))?;
    let is_stopped = !waited[1].revents().is_empty();
    let mut line = String::new();
    if !is_stopped {
        terminal.read_line(&mut line).map_err(told)?;
    }
    drop(silent);
    writeln!(words).map_err(told)?;
    if is_stopped {
        Err("interrupted: nothing was changed".to_owned())
    } else {
        Ok(line.into_bytes())
    }
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct Silent<'a>(&'a Termios);

impl<'a> Silent<'a> {
    fn begin(before: &'a Termios) -> io::Result<Self> {
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.remove(LocalModes::ECHONL);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs no echo.
        tcsetattr(io::stdin(), OptionalActions::Flush, self.0).ok();
    }
}

/// What `list --json` prints.
#[derive(Serialize)]
struct Listed {
    /// Of the store.
    secrets: Vec<StoredName>,
    /// Names that files of the host describe.
    sources: Vec<String>,
}

fn list(store: &SecretStore, places: &SecretPlaces, json: bool) -> Result<u8, String> {
    let sources = places.sources().map_err(|error| error.to_string())?;
    let sources: Vec<String> = sources.into_keys().collect();
    let listed = Listed { secrets: store.list()?, sources };
    if json {
        return Ok(render::json(&listed));
    }
    let mut rows = vec![["NAME", "FROM", "SET"].map(String::from)];
    let kept = listed.secrets.into_iter().filter(|one| !listed.sources.contains(&one.name));
    rows.extend(kept.map(|one| [one.name, "store".to_owned(), one.set_at]));
    rows.extend(
        listed.sources.iter().map(|name| [name.clone(), "secrets.toml".to_owned(), String::new()]),
    );
    Ok(render::table(&rows))
}
