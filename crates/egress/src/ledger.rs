//! What was reached and what was refused, and how it is told.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_jail::egress::{From, Reached, Refused, Told, Why};
use belljar_sys::fd;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::{Notify, watch};

/// Hosts, with their ports, that are counted apart.
const MAX_LINES: usize = 1024;
/// Refusals that are told apart; more of them are one.
const MAX_REFUSALS: usize = 256;
/// Lines in one message: each is shorter than 400 bytes.
const LINES_AT_ONCE: usize = 32;
/// The shortest time between two tellings.
const PAUSE: Duration = Duration::from_millis(100);
/// What is told of a name or detail that somebody made long.
const MAX_SHOWN: usize = 256;
const OTHERS: &str = "(others)";
/// How long a client that is refused waits while the keeper looks who it is.
const WHO: Duration = Duration::from_secs(2);

/// All of it.
#[derive(Debug)]
pub(crate) struct Ledger {
    lines: RefCell<HashMap<(String, u16), Rc<Line>>>,
    refusals: RefCell<Refusals>,
    news: Notify,
    /// Somebody waits until it is told.
    urgent: Notify,
    /// Refusals before this one have been looked at.
    noted: watch::Sender<u32>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            lines: RefCell::default(),
            refusals: RefCell::default(),
            news: Notify::new(),
            urgent: Notify::new(),
            noted: watch::Sender::new(0),
        }
    }
}

/// One host and port.
#[derive(Debug, Default)]
pub(crate) struct Line {
    connections: Cell<u64>,
    sent: Cell<u64>,
    received: Cell<u64>,
    told: Cell<(u64, u64, u64)>,
}

impl Line {
    fn now(&self) -> (u64, u64, u64) {
        (self.connections.get(), self.sent.get(), self.received.get())
    }

    pub(crate) fn send(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }

    pub(crate) fn receive(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
    }
}

#[derive(Debug, Default)]
struct Refusals {
    known: HashMap<(String, u16, Why, String), usize>,
    all: Vec<(Refused, u64)>,
}

impl Ledger {
    /// A connection to a host was made.
    pub(crate) fn reach(&self, host: &str, port: u16) -> Rc<Line> {
        let mut lines = self.lines.borrow_mut();
        let key = (host.to_owned(), port);
        let full = lines.len() >= MAX_LINES && !lines.contains_key(&key);
        let key = if full { (OTHERS.to_owned(), 0) } else { key };
        let line = Rc::clone(lines.entry(key).or_default());
        line.connections.set(line.connections.get() + 1);
        self.news.notify_one();
        line
    }

    /// The keeper has looked who this was.
    pub(crate) fn noted(&self, number: u32) {
        self.noted.send_modify(|before| *before = (*before).max(number.saturating_add(1)));
    }

    /// Notes a refusal before its client hears of it. One of a new kind is told at once, and the keeper has a moment to
    /// look who asked: a client that has its answer may be gone. So may one that has the answer to its second question, such
    /// as for a name's other addresses: whoever asks the same meanwhile waits too.
    pub(crate) async fn refuse(&self, from: Option<From>, refusal: (&str, u16, Why, &str)) {
        let number = self.note(from, refusal).or_else(|| self.looked_for(refusal));
        if let Some(number) = number {
            let mut noted = self.noted.subscribe();
            // Best effort: without an answer it is told without a program.
            tokio::time::timeout(WHO, noted.wait_for(|noted| *noted > number)).await.ok();
        }
    }

    /// The number of the first of this kind, if the keeper may still be looking who that was.
    fn looked_for(&self, (host, port, why, detail): (&str, u16, Why, &str)) -> Option<u32> {
        let refusals = self.refusals.borrow();
        let place = refusals.known.get(&(shown(host), port, why, shown(detail)))?;
        let (first, _) = refusals.all.get(*place)?;
        let long_ago = Duration::from_millis(now_ms().saturating_sub(first.time_ms)) >= WHO;
        (!long_ago && *self.noted.borrow() <= first.number).then_some(first.number)
    }

    /// Counts one and has it told at once; its number if somebody looks who it was.
    pub(crate) fn note(&self, from: Option<From>, refusal: (&str, u16, Why, &str)) -> Option<u32> {
        let number = self.count(from, refusal)?;
        self.urgent.notify_one();
        from.map(|_| number)
    }

    /// Counts one; its number if it is the first of its kind.
    fn count(
        &self,
        from: Option<From>,
        (host, port, why, detail): (&str, u16, Why, &str),
    ) -> Option<u32> {
        let mut refusals = self.refusals.borrow_mut();
        let mut key = (shown(host), port, why, shown(detail));
        if refusals.all.len() >= MAX_REFUSALS && !refusals.known.contains_key(&key) {
            key = (OTHERS.to_owned(), 0, why, String::new());
        }
        self.news.notify_one();
        let place = refusals.known.get(&key).copied();
        if let Some((known, _)) = place.and_then(|place| refusals.all.get_mut(place)) {
            known.count += 1;
            return None;
        }
        let number = u32::try_from(refusals.all.len()).unwrap_or(u32::MAX);
        let (host, port, why, detail) = key.clone();
        let (time_ms, count, program) = (now_ms(), 1, None);
        let refused = Refused { time_ms, number, host, port, why, detail, count, from, program };
        refusals.known.insert(key, number as usize);
        refusals.all.push((refused, 0));
        Some(number)
    }

    /// What has not been told.
    fn untold(&self) -> Vec<Told> {
        let mut told = Vec::new();
        for (refused, before) in &mut self.refusals.borrow_mut().all {
            if refused.count > *before {
                *before = refused.count;
                told.push(Told::Refused(refused.clone()));
                // Its client has gone by the next time.
                refused.from = None;
            }
        }
        let mut reached = Vec::new();
        for ((host, port), line) in self.lines.borrow().iter() {
            let now = line.now();
            if line.told.replace(now) != now {
                let (connections, sent_bytes, received_bytes) = now;
                let (host, port) = (host.clone(), *port);
                reached.push(Reached { host, port, connections, sent_bytes, received_bytes });
            }
        }
        told.extend(reached.chunks(LINES_AT_ONCE).map(|some| Told::Reached(some.to_vec())));
        told
    }

    /// Tells now.
    pub(crate) async fn tell(&self, keeper: &UnixDatagram) -> io::Result<()> {
        for told in self.untold() {
            say(keeper, &told).await?;
        }
        Ok(())
    }

    /// Tells whenever there is news, and not too often. Bytes that pass are no news by themselves, so it looks now
    /// and then.
    pub(crate) async fn keep_telling(&self, keeper: &UnixDatagram) -> io::Result<()> {
        loop {
            // It does not matter which of the two it was.
            tokio::time::timeout(PAUSE * 10, self.news.notified()).await.ok();
            self.tell(keeper).await?;
            tokio::time::timeout(PAUSE, self.urgent.notified()).await.ok();
        }
    }
}

pub(crate) async fn say(keeper: &UnixDatagram, told: &Told) -> io::Result<()> {
    let json = serde_json::to_vec(told)?;
    loop {
        keeper.writable().await?;
        match keeper.try_io(Interest::WRITABLE, || Ok(fd::try_send(keeper, &json)?)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_refusal_is_counted_and_ten_thousand_are_bounded() {
        let ledger = Ledger::default();
        for _ in 0..3 {
            ledger.count(None, ("a.example", 443, Why::Name, ""));
        }
        let told = ledger.untold();
        assert!(matches!(&told[..], [Told::Refused(one)] if one.count == 3), "{told:?}");
        assert!(ledger.untold().is_empty());
        for number in 0..10_000 {
            ledger.count(None, (&format!("n{number}.example"), 0, Why::Name, ""));
        }
        let told = ledger.untold();
        assert!(told.len() <= MAX_REFUSALS + 1, "{}", told.len());
        let all: u64 = told
            .iter()
            .map(|one| match one {
                Told::Refused(one) => one.count,
                Told::Ready | Told::Obeyed | Told::Reached(_) => 0,
            })
            .sum();
        assert_eq!(all, 10_000);
    }

    #[test]
    fn a_second_question_waits_as_long_as_the_first_one_is_looked_for() {
        let (ledger, refusal) = (Ledger::default(), ("a.example", 0, Why::Name, ""));
        assert_eq!(ledger.looked_for(refusal), None);
        let number = ledger.count(None, refusal).unwrap();
        assert_eq!(ledger.looked_for(refusal), Some(number));
        ledger.noted(number);
        assert_eq!(ledger.looked_for(refusal), None);
    }

    #[test]
    fn lines_are_whole_numbers_and_bounded() {
        let ledger = Ledger::default();
        let line = ledger.reach("a.example", 443);
        line.send(5);
        line.receive(7);
        let told = ledger.untold();
        let wanted = Reached {
            host: "a.example".into(),
            port: 443,
            connections: 1,
            sent_bytes: 5,
            received_bytes: 7,
        };
        assert_eq!(told, [Told::Reached(vec![wanted])]);
        for number in 0..2 * MAX_LINES {
            ledger.reach(&format!("n{number}.example"), 443);
        }
        assert_eq!(ledger.lines.borrow().len(), MAX_LINES + 1);
        for told in ledger.untold() {
            assert!(serde_json::to_vec(&told).unwrap().len() < 32 << 10);
        }
    }
}
