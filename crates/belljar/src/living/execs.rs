//! Programs in a sandbox: the verbs of execs.

use std::sync::Arc;

use super::files::{Files, Room};
use super::following::{Following, Offsets};
use super::store::Ground;
use super::{Sandboxes, blocking};
use crate::execution_id::new_id;
use crate::model::error::{Error, SpecError};
use crate::model::sandbox::{ExecEvent, ExecInfo, ExecRequest, ExecState, TerminalSize};
use crate::native::living;

/// Signals by name; every other one goes by its number.
const SIGNALS: [(&str, i32); 13] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("WINCH", 28),
];
const MOST_SIGNAL: i32 = 31;

impl Sandboxes {
    /// Starts a program. Unless it is in the background it ends when what is returned is dropped.
    pub async fn exec(&self, name: &str, request: ExecRequest) -> Result<Following, Error> {
        check(&request)?;
        let name = name.to_owned();
        self.whole(|this| async move { this.begin(&name, request).await }).await
    }

    async fn begin(&self, name: &str, request: ExecRequest) -> Result<Following, Error> {
        if self.find(name)?.0.request.undo {
            self.lines(name).await?;
            self.keep_automatic(name).await?;
        }
        let standing = self.standing(name).await?;
        let lines = &standing.lines;
        let id = new_id()?;
        lines.living.exec(&id, &request).await?;
        let follow = lines.living.follow(&id, [0, 0]).await?;
        let following = Following::lives(id, follow);
        Ok(if request.background {
            following
        } else {
            following.ends_with(Arc::clone(&lines.living), self.owed.one_more())
        })
    }

    /// Every exec that is still known, the oldest first.
    pub async fn execs(&self, name: &str) -> Result<Vec<ExecInfo>, Error> {
        let (record, slot) = self.find(name)?;
        let stands = slot.lines().await?.is_some();
        let (directory, shown) = (slot.directory.clone(), record.name.to_string());
        let wrong = Error::backend("read what ran in a sandbox");
        blocking(move || living::records(&directory, &shown, stands).map_err(wrong)).await
    }

    pub async fn exec_info(&self, name: &str, id: &str) -> Result<ExecInfo, Error> {
        let all = self.execs(name).await?;
        all.into_iter().find(|one| one.id == id).ok_or_else(|| Error::NotFound {
            what: format!("{name} has no exec {id:?}. hint: belljar sandbox execs {name}"),
        })
    }

    /// An exec from these offsets on, whether it runs or has ended.
    pub async fn follow(&self, name: &str, id: &str, from: Offsets) -> Result<Following, Error> {
        let info = self.exec_info(name, id).await?;
        let (_, slot) = self.find(name)?;
        match slot.lines().await? {
            Some(lines) if info.state == ExecState::Running => {
                let follow = lines.living.follow(id, [from.stdout, from.stderr]).await?;
                Ok(Following::lives(id.to_owned(), follow))
            }
            _ => Ok(Following::ended(slot.directory.clone(), info, from)),
        }
    }

    /// Waits for its end.
    pub async fn wait(&self, name: &str, id: &str) -> Result<ExecInfo, Error> {
        let info = self.exec_info(name, id).await?;
        if info.state != ExecState::Running {
            return Ok(info);
        }
        let from = Offsets { stdout: info.stdout_bytes, stderr: info.stderr_bytes };
        let mut following = self.follow(name, id, from).await?;
        while let Some(event) = following.next().await? {
            if let ExecEvent::Ended(info) = event {
                return Ok(info);
            }
        }
        self.exec_info(name, id).await
    }

    /// The files of a sandbox, to be read and written.
    pub async fn files(&self, name: &str) -> Result<Files, Error> {
        let (record, lines) = self.lines(name).await?;
        // A file system of its own says by itself when it is full.
        let measured = record.ground == Ground::Directory;
        let limit = Room { bytes: record.disk_bytes, inodes: record.inodes };
        lines.files_within(measured.then_some(limit)).await
    }

    pub async fn input(&self, name: &str, id: &str, data: &[u8]) -> Result<(), Error> {
        let (_, lines) = self.lines(name).await?;
        lines.living.input(id, data).await
    }

    pub async fn close_input(&self, name: &str, id: &str) -> Result<(), Error> {
        let (_, lines) = self.lines(name).await?;
        lines.living.close_input(id).await
    }

    /// `TERM`, `SIGTERM` or `15`.
    pub async fn signal(&self, name: &str, id: &str, signal: &str) -> Result<(), Error> {
        let number = signal_number(signal)?;
        let (_, lines) = self.lines(name).await?;
        lines.living.signal(id, number).await
    }

    pub async fn resize(&self, name: &str, id: &str, size: TerminalSize) -> Result<(), Error> {
        let (_, lines) = self.lines(name).await?;
        lines.living.resize(id, size).await
    }
}

fn check(request: &ExecRequest) -> Result<(), SpecError> {
    if request.cmd.first().is_none_or(String::is_empty) {
        return Err(SpecError::new("cmd", "is empty: give a program and its arguments"));
    }
    if let Some(user) = request.user.as_deref().filter(|user| *user != "sandbox") {
        let reason = format!("is {user:?}; the one user there is inside is called sandbox");
        return Err(SpecError::new("user", reason));
    }
    if request.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
        return Err(SpecError::new("cwd", "must be an absolute path inside the sandbox"));
    }
    if request.timeout_ms == Some(0) {
        return Err(SpecError::new("timeout_ms", "is 0: give at least 1, or leave it out"));
    }
    Ok(())
}

fn signal_number(text: &str) -> Result<i32, SpecError> {
    let bare = text.strip_prefix("SIG").unwrap_or(text);
    let named = SIGNALS.iter().find(|(name, _)| name.eq_ignore_ascii_case(bare));
    let number = named.map(|(_, number)| *number).or_else(|| bare.parse().ok());
    number.filter(|number| (1..=MOST_SIGNAL).contains(number)).ok_or_else(|| {
        let reason = format!("is {text:?}; give a name (TERM, INT, KILL, …) or 1 to {MOST_SIGNAL}");
        SpecError::new("signal", reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("TERM", 15), ("SIGKILL", 9), ("int", 2), ("31", 31)] {
            assert_eq!(signal_number(text), Ok(number));
        }
        for wrong in ["", "NOPE", "0", "32", "-1", "SIG"] {
            assert_eq!(signal_number(wrong).unwrap_err().field, "signal", "{wrong}");
        }
    }

    #[test]
    fn mistakes_in_an_exec_are_told_by_field() {
        let good = ExecRequest { cmd: vec!["true".into()], ..ExecRequest::default() };
        assert_eq!(check(&good), Ok(()));
        let wrong = [
            ("cmd", ExecRequest::default()),
            ("user", ExecRequest { user: Some("root".into()), ..good.clone() }),
            ("cwd", ExecRequest { cwd: Some("here".into()), ..good.clone() }),
            ("timeout_ms", ExecRequest { timeout_ms: Some(0), ..good.clone() }),
        ];
        for (field, request) in wrong {
            assert_eq!(check(&request).unwrap_err().field, field);
        }
    }
}
