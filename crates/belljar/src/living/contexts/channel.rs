//! The line to a program in a sandbox: an exec whose input stays open, and whose output is followed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use crate::model::error::Error;
use crate::model::outcome::Stream;
use crate::model::sandbox::{ExecEnd, ExecEvent, ExecRequest};
use crate::native::living::{Follow, Living};

pub(crate) type Soon<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A context lives as long as its sandbox: its calls have clocks of their own.
const CONTEXT_LIFE_MS: u64 = 7 * 24 * 60 * 60 * 1000;
const SIGKILL: i32 = 9;

/// A program that is spoken with.
pub(crate) trait Channel: Send + fmt::Debug {
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> Soon<'a, ()>;
    /// The next that it says. Nothing is lost when this is dropped before it is ready.
    fn hear(&mut self) -> Soon<'_, Heard>;
    /// To its whole process group.
    fn signal(&mut self, number: i32) -> Soon<'_, ()>;
    /// Ends it and all that it started; its end is heard then.
    fn kill(&mut self) -> Soon<'_, ()>;
}

#[derive(Debug)]
pub(crate) enum Heard {
    Output(Stream, Vec<u8>),
    /// Bytes that nobody kept.
    Gap(Stream),
    Ended(Option<ExecEnd>),
}

/// Where programs are started.
pub(crate) trait Place: Send + Sync + fmt::Debug {
    /// By the name of its exec it is found again.
    fn start(&self, exec: String, program: Start) -> Soon<'_, Box<dyn Channel>>;
    /// One that was started before, from here on; `None` when it has ended.
    fn attach<'a>(&'a self, exec: &'a str, from: [u64; 2]) -> Soon<'a, Option<Box<dyn Channel>>>;
}

#[derive(Debug)]
pub(crate) struct Start {
    pub cmd: Vec<String>,
    pub cwd: PathBuf,
    pub env: BTreeMap<String, String>,
}

impl Place for Arc<Living> {
    fn start(&self, exec: String, program: Start) -> Soon<'_, Box<dyn Channel>> {
        Box::pin(async move {
            let request = ExecRequest {
                cmd: program.cmd,
                cwd: Some(program.cwd),
                env: program.env,
                keep_stdin: true,
                background: true,
                timeout_ms: Some(CONTEXT_LIFE_MS),
                ..ExecRequest::default()
            };
            self.exec(&exec, &request).await?;
            let follow = self.follow(&exec, [0, 0]).await?;
            Ok(Box::new(InSandbox { living: Self::clone(self), exec, follow }) as Box<dyn Channel>)
        })
    }

    fn attach<'a>(&'a self, exec: &'a str, from: [u64; 2]) -> Soon<'a, Option<Box<dyn Channel>>> {
        Box::pin(async move {
            let follow = self.follow(exec, from).await?;
            let channel = InSandbox { living: Self::clone(self), exec: exec.to_owned(), follow };
            Ok(Some(Box::new(channel) as Box<dyn Channel>))
        })
    }
}

/// An exec of a living sandbox.
#[derive(Debug)]
struct InSandbox {
    living: Arc<Living>,
    exec: String,
    follow: Follow,
}

impl Channel for InSandbox {
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> Soon<'a, ()> {
        Box::pin(self.living.input(&self.exec, bytes))
    }

    fn hear(&mut self) -> Soon<'_, Heard> {
        Box::pin(async {
            loop {
                return Ok(match self.follow.next().await? {
                    Some(ExecEvent::Started { .. }) => continue,
                    Some(ExecEvent::Output { stream, data, .. }) => Heard::Output(stream, data.0),
                    Some(ExecEvent::Gap { stream, .. }) => Heard::Gap(stream),
                    Some(ExecEvent::Ended(info)) => Heard::Ended(info.end),
                    None => Heard::Ended(None),
                });
            }
        })
    }

    fn signal(&mut self, number: i32) -> Soon<'_, ()> {
        Box::pin(async move {
            match self.living.signal(&self.exec, number).await {
                // It has ended by itself meanwhile, which is heard next.
                Err(Error::NotFound { .. }) => Ok(()),
                sent => sent,
            }
        })
    }

    fn kill(&mut self) -> Soon<'_, ()> {
        self.signal(SIGKILL)
    }
}
