//! Real addresses of allowed names: asked for once, checked, and held on to.
//!
//! Nobody inside sees them. A name that is not allowed is never asked for, so no question carries anything out.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::message::{self, A, AAAA, Answer};

/// Questions under way at once.
const AT_ONCE: usize = 64;
/// How long one server has for one answer, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// Servers that are asked, of those that the plan names.
const MAX_SERVERS: usize = 4;
/// For how long an answer is held, whatever it says itself.
const LEAST: Duration = Duration::from_secs(5);
const MOST: Duration = Duration::from_secs(300);
/// Names that are remembered.
const MAX_CACHED: usize = 4096;
/// Datagrams that are looked at while waiting for one answer: the others are somebody else's, or forged.
const MAX_STRAYS: usize = 32;

/// What is known of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Addresses(Vec<IpAddr>),
    NoSuchName,
    Failed,
}

#[derive(Debug)]
pub(crate) struct Resolver {
    servers: Vec<SocketAddr>,
    cache: RefCell<HashMap<String, (Known, Instant)>>,
    under_way: Semaphore,
}

impl Resolver {
    pub(crate) fn new(servers: &[SocketAddr]) -> Self {
        Self {
            servers: servers.iter().copied().take(MAX_SERVERS).collect(),
            cache: RefCell::default(),
            under_way: Semaphore::new(AT_ONCE),
        }
    }

    /// All addresses of a name, from the last answer as long as that holds.
    pub(crate) async fn look_up(&self, name: &str) -> Known {
        if let Some(known) = self.remembered(name) {
            return known;
        }
        let Ok(_turn) = self.under_way.acquire().await else {
            return Known::Failed;
        };
        // Another may have asked for the same while we waited.
        if let Some(known) = self.remembered(name) {
            return known;
        }
        let (four, six) = tokio::join!(self.ask(name, A), self.ask(name, AAAA));
        let (known, holds) = both(four, six);
        let mut cache = self.cache.borrow_mut();
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(name.to_owned(), (known.clone(), Instant::now() + holds));
        known
    }

    fn remembered(&self, name: &str) -> Option<Known> {
        let cache = self.cache.borrow();
        let (known, until) = cache.get(name)?;
        (*until > Instant::now()).then(|| known.clone())
    }

    /// Asks one server after the other.
    async fn ask(&self, name: &str, kind: u16) -> Answer {
        let mut last = Answer::Failed;
        for _ in 0..ROUNDS {
            for server in &self.servers {
                match tokio::time::timeout(PATIENCE, ask_one(*server, name, kind)).await {
                    Ok(Ok(Answer::Failed)) => last = Answer::Failed,
                    Ok(Ok(answer)) => return answer,
                    Ok(Err(_)) | Err(_) => {}
                }
            }
        }
        last
    }
}

fn both(four: Answer, six: Answer) -> (Known, Duration) {
    let mut found = Vec::new();
    let mut holds = MOST;
    let mut answered = false;
    for answer in [&four, &six] {
        if let Answer::Addresses(some, seconds) = answer {
            found.extend(some);
            holds = holds.min(Duration::from_secs((*seconds).into()));
            answered = true;
        }
    }
    let holds = holds.max(LEAST);
    let known = match (four, six) {
        _ if !found.is_empty() => Known::Addresses(found),
        (Answer::NoSuchName, _) | (_, Answer::NoSuchName) => Known::NoSuchName,
        _ if answered => Known::Addresses(Vec::new()),
        _ => Known::Failed,
    };
    (known, holds)
}

/// From a port of its own and with a number of its own, both of which an answer must know.
async fn ask_one(server: SocketAddr, name: &str, kind: u16) -> io::Result<Answer> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let mut id = [0; 2];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
    let id = u16::from_be_bytes(id);
    let question = message::question(id, name, kind);
    socket.send(&question).await?;
    let mut bytes = vec![0; 4096];
    for _ in 0..MAX_STRAYS {
        let length = socket.recv(&mut bytes).await?;
        match message::read_answer(&bytes[..length], id, name, kind) {
            Some(Answer::Truncated) => {
                return ask_by_stream(server, &question, id, name, kind).await;
            }
            Some(answer) => return Ok(answer),
            None => {}
        }
    }
    Ok(Answer::Failed)
}

async fn ask_by_stream(
    server: SocketAddr,
    question: &[u8],
    id: u16,
    name: &str,
    kind: u16,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).unwrap_or(0);
    stream.write_all(&[&length.to_be_bytes()[..], question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await?;
    let answer = message::read_answer(&bytes, id, name, kind);
    Ok(answer.filter(|answer| *answer != Answer::Truncated).unwrap_or(Answer::Failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_held_for_a_bounded_time() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let some = |text: &str, seconds| Answer::Addresses(vec![address(text)], seconds);
        let none = Answer::Addresses(Vec::new(), u32::MAX);
        assert_eq!(
            both(some("192.0.2.1", 0), none.clone()),
            (Known::Addresses(vec![address("192.0.2.1")]), LEAST)
        );
        assert_eq!(both(some("192.0.2.1", 1_000_000), none.clone()).1, MOST);
        assert_eq!(both(none.clone(), none.clone()).0, Known::Addresses(Vec::new()));
        assert_eq!(both(Answer::NoSuchName, Answer::NoSuchName).0, Known::NoSuchName);
        assert_eq!(both(Answer::Failed, none).0, Known::Addresses(Vec::new()));
        assert_eq!(both(Answer::Failed, Answer::Failed).0, Known::Failed);
    }
}
