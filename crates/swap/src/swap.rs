//! Placeholders and what becomes of them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_jail::redact::Patterns;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

/// Every placeholder begins so: people who find one in a file know what it is.
const PREFIX: &str = "bjph_";
const LETTERS: usize = 40;

/// A secret with the token that stands for it inside.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// By what people know it.
    pub name: String,
    pub placeholder: String,
    pub value: String,
    /// Values that it had before: a host may still repeat them.
    pub older: Vec<String>,
    /// Exact names, or `*.` and a name.
    pub hosts: Vec<String>,
    /// Those of them that nobody looks into.
    pub exempt: Vec<String>,
    /// Headers that it may stand in besides those by which everybody authorizes.
    pub headers: Vec<String>,
    pub in_query: bool,
    pub in_body: bool,
}

impl fmt::Debug for Binding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Binding({:?})", self.hosts)
    }
}

impl Binding {
    pub fn is_for(&self, host: &str) -> bool {
        is_among(&self.hosts, host) && !self.exempts(host)
    }

    fn exempts(&self, host: &str) -> bool {
        is_among(&self.exempt, host)
    }
}

fn is_among(hosts: &[String], host: &str) -> bool {
    hosts.iter().any(|known| match known.strip_prefix("*.") {
        Some(end) => {
            let head = host.len().checked_sub(end.len() + 1);
            head.is_some_and(|head| {
                head > 0
                    && host.as_bytes()[head] == b'.'
                    && host.is_char_boundary(head + 1)
                    && host[head + 1..].eq_ignore_ascii_case(end)
            })
        }
        None => known.eq_ignore_ascii_case(host),
    })
}

/// A token that nobody can guess.
pub fn placeholder() -> Result<String, std::io::Error> {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut random = [0u8; LETTERS];
    if getrandom(&mut random, GetRandomFlags::empty())? < LETTERS {
        return Err(std::io::Error::other("the kernel has no randomness to give"));
    }
    let letters = random.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    Ok(PREFIX.chars().chain(letters).collect())
}

/// What may not leave, where it was about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// A placeholder where it may not go: an attempt to have a secret sent elsewhere. The place of its binding.
    Token(usize),
    /// A value that nobody needs.
    Decoy,
}

/// All secrets of a sandbox.
#[derive(Clone, Debug, Default)]
pub struct Swap {
    bindings: Vec<Binding>,
    /// The placeholders, then the decoys, in every spelling.
    watched: Patterns,
    decoys: Vec<String>,
    /// What must not come back, for each set of bindings that some host has. Made once: it is large, and every connection
    /// needs it.
    returning: Arc<Mutex<Vec<Returning>>>,
}

/// The places of bindings, and their values.
type Returning = (Vec<usize>, Arc<Patterns>);

/// Values that a secret had before and that are still hidden.
const MAX_OLDER: usize = 8;
/// Sets of bindings whose values are held ready.
const MAX_RETURNING: usize = 64;

/// The secrets as they are now: values may change while connections are open.
#[derive(Debug, Default)]
pub struct Current(Mutex<Arc<Swap>>);

impl Current {
    pub fn new(swap: Swap) -> Self {
        Self(Mutex::new(Arc::new(swap)))
    }

    pub fn now(&self) -> Arc<Swap> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For the next request, on open connections too. A value that is no more is hidden on; where nothing has changed
    /// nothing is disturbed. Decoys stay unless there are others.
    pub fn renew(&self, mut bindings: Vec<Binding>, decoys: Vec<String>) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for one in &mut bindings {
            let before = now.bindings.iter().find(|own| own.placeholder == one.placeholder);
            let values =
                before.into_iter().flat_map(|own| std::iter::once(&own.value).chain(&own.older));
            for value in values {
                if *value != one.value && !one.older.contains(value) && one.older.len() < MAX_OLDER
                {
                    one.older.push(value.clone());
                }
            }
        }
        let decoys = if decoys.is_empty() { now.decoys.clone() } else { decoys };
        if now.bindings != bindings || now.decoys != decoys {
            *now = Arc::new(Swap::new(bindings, &decoys));
        }
    }
}

impl Swap {
    pub fn new(bindings: Vec<Binding>, decoys: &[String]) -> Self {
        let tokens = bindings.iter().map(|one| one.placeholder.as_str());
        let watched = Patterns::new(tokens.chain(decoys.iter().map(String::as_str)));
        Self { bindings, watched, decoys: decoys.to_vec(), returning: Arc::default() }
    }

    /// Whether what goes to this host must be looked into. Where one secret exempts it nobody looks.
    pub fn concerns(&self, host: &str) -> bool {
        self.bindings.iter().any(|one| one.is_for(host))
            && !self.bindings.iter().any(|one| one.exempts(host))
    }

    /// Whether a value may be sent to this host, and so come back from it.
    pub(crate) fn is_sent_to(&self, host: &str) -> bool {
        self.bindings.iter().any(|one| one.is_for(host))
    }

    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// What must not leave: whoever sees bytes leave looks for it ([`belljar_jail::redact::Scanner`]).
    pub fn watched(&self) -> &Patterns {
        &self.watched
    }

    /// What was found, by its place among what is watched for.
    pub fn stray(&self, place: usize) -> Stray {
        if place < self.bindings.len() { Stray::Token(place) } else { Stray::Decoy }
    }

    /// What must not come back from a host: the values that may be sent there. Those of other hosts it does not know; to
    /// look for them would tell a program whether it has guessed one.
    pub(crate) fn returning(&self, host: &str) -> Arc<Patterns> {
        let own = self.bindings.iter().enumerate().filter(|(_, one)| one.is_for(host));
        let places: Vec<usize> = own.map(|(place, _)| place).collect();
        let mut known = self.returning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, patterns)) = known.iter().find(|(own, _)| *own == places) {
            return Arc::clone(patterns);
        }
        let mut patterns = Patterns::default();
        for one in places.iter().filter_map(|place| self.bindings.get(*place)) {
            for value in std::iter::once(&one.value).chain(&one.older) {
                patterns.add_outside(value);
            }
        }
        let patterns = Arc::new(patterns);
        if known.len() >= MAX_RETURNING {
            known.clear();
        }
        known.push((places, Arc::clone(&patterns)));
        patterns
    }

    /// Refuses what still holds a placeholder, or a decoy, in any spelling.
    pub fn check(&self, bytes: &[u8]) -> Result<(), Stray> {
        self.watched.find(bytes).first().map_or(Ok(()), |mark| Err(self.stray(mark.value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(token: &str, value: &str, hosts: &[&str]) -> Binding {
        Binding {
            placeholder: token.to_owned(),
            value: value.to_owned(),
            hosts: hosts.iter().map(|one| (*one).to_owned()).collect(),
            ..Binding::default()
        }
    }

    #[test]
    fn hosts_are_matched_whole_or_by_their_labels() {
        let one = binding("t", "v", &["a.example", "*.b.example"]);
        for (host, wanted) in [
            ("a.example", true),
            ("A.EXAMPLE", true),
            ("x.b.example", true),
            ("x.y.b.example", true),
            ("b.example", false),
            ("xb.example", false),
            (".b.example", false),
            ("xa.example", false),
            ("a.example.evil", false),
            ("", false),
        ] {
            assert_eq!(one.is_for(host), wanted, "{host}");
        }
    }

    #[test]
    fn a_host_that_one_secret_exempts_is_looked_into_for_none() {
        let all = binding("token-1", "value-1", &["*.b.example"]);
        let but = Binding { exempt: vec!["pinned.b.example".to_owned()], ..all.clone() };
        let other = binding("token-2", "value-2", &["pinned.b.example", "c.example"]);
        assert!(all.is_for("pinned.b.example") && !but.is_for("pinned.b.example"));
        assert!(Swap::new(vec![all, other.clone()], &[]).concerns("pinned.b.example"));
        let swap = Swap::new(vec![but, other], &[]);
        assert!(!swap.concerns("pinned.b.example"));
        assert!(swap.concerns("x.b.example") && swap.concerns("c.example"));
    }

    #[test]
    fn placeholders_and_decoys_are_known_in_every_spelling() {
        let (one, two) = (placeholder().unwrap(), placeholder().unwrap());
        assert!(one != two && one.len() == 45);
        let decoy = "a-decoy-of-some-length".to_owned();
        let bindings =
            vec![binding(&one, "s3cr3t", &["a.example"]), binding(&two, "other", &["b.example"])];
        let swap = Swap::new(bindings, std::slice::from_ref(&decoy));
        assert_eq!(swap.check(format!("Bearer {one}").as_bytes()), Err(Stray::Token(0)));
        assert_eq!(swap.check(two.as_bytes()), Err(Stray::Token(1)));
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(swap.check(hex(&one).as_bytes()), Err(Stray::Token(0)), "hidden");
        let returning = |host: &str| swap.returning(host).values().count();
        assert_eq!((returning("a.example"), returning("c.example")), (1, 0), "only its own");
        let (one, other) = (swap.returning("c.example"), swap.returning("d.example"));
        assert!(
            Arc::ptr_eq(&one, &other),
            "the same for all connections and hosts that have the same"
        );
        assert!(!Arc::ptr_eq(&one, &swap.returning("a.example")));
        assert_eq!(swap.check(hex(&decoy).as_bytes()), Err(Stray::Decoy));
        assert!(swap.concerns("a.example") && !swap.concerns("c.example"));
        assert!(!format!("{swap:?}").contains("s3cr3t"));
    }

    #[test]
    fn values_that_are_no_more_are_hidden_on_and_nothing_is_disturbed_for_nothing() {
        let current = Current::default();
        let one = |value: &str| vec![binding("token-1", value, &["a.example"])];
        current.renew(one("value-0"), vec!["decoy-0123".to_owned()]);
        let first = current.now();
        current.renew(one("value-0"), Vec::new());
        assert!(Arc::ptr_eq(&first, &current.now()), "the same");
        for number in 1..20 {
            current.renew(one(&format!("value-{number}")), Vec::new());
        }
        let now = current.now();
        let older = &now.bindings()[0].older;
        assert_eq!(older.len(), MAX_OLDER);
        assert_eq!((older[0].as_str(), older[7].as_str()), ("value-18", "value-11"));
        assert!(now.returning("a.example").find(b"say value-18").len() == 1);
        assert_eq!(now.check(b"decoy-0123"), Err(Stray::Decoy), "decoys stay");
    }
}
