//! Placeholders and what becomes of them.

use std::fmt;

use belljar_jail::redact::Patterns;
use rustix::rand::{GetRandomFlags, getrandom};

/// Every placeholder begins so: people who find one in a file know what it is.
const PREFIX: &str = "bjph_";
const LETTERS: usize = 40;

/// A secret with the token that stands for it inside.
#[derive(Clone)]
pub struct Binding {
    pub placeholder: String,
    pub value: String,
    /// Exact names, or `*.` and a name.
    pub hosts: Vec<String>,
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
        self.hosts.iter().any(|known| match known.strip_prefix("*.") {
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

/// A placeholder where it may not go: an attempt to have a secret sent elsewhere. The place of the binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stray(pub usize);

/// All secrets of a sandbox.
#[derive(Clone, Debug, Default)]
pub struct Swap {
    bindings: Vec<Binding>,
    /// The placeholders, in every spelling.
    tokens: Patterns,
}

impl Swap {
    pub fn new(bindings: Vec<Binding>) -> Self {
        let tokens = Patterns::new(bindings.iter().map(|one| one.placeholder.as_str()));
        Self { bindings, tokens }
    }

    /// Whether what goes to this host must be looked into.
    pub fn concerns(&self, host: &str) -> bool {
        self.bindings.iter().any(|one| one.is_for(host))
    }

    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// The placeholders: whoever sees bytes leave unencrypted looks for them ([`belljar_jail::redact::Scanner`]).
    pub fn tokens(&self) -> &Patterns {
        &self.tokens
    }

    /// What must not come back from this host: the values that were sent there.
    pub fn returning(&self, host: &str) -> Patterns {
        let sent = self.bindings.iter().filter(|one| one.is_for(host));
        Patterns::new(sent.map(|one| one.value.as_str()))
    }

    /// Replaces the placeholders of this host's secrets in a text, and refuses those of others.
    pub(crate) fn replace(
        &self,
        host: &str,
        text: &str,
        allowed: impl Fn(&Binding) -> bool,
    ) -> Result<String, Stray> {
        let mut out = text.to_owned();
        for one in self.bindings.iter().filter(|one| one.is_for(host) && allowed(one)) {
            out = out.replace(&one.placeholder, &one.value);
        }
        self.check(out.as_bytes())?;
        Ok(out)
    }

    /// Refuses what still holds a placeholder, in any spelling.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), Stray> {
        self.tokens.find(bytes).first().map_or(Ok(()), |mark| Err(Stray(mark.value)))
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
            in_query: false,
            in_body: false,
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
    fn a_placeholder_is_replaced_for_its_hosts_and_refused_for_others() {
        let (one, two) = (placeholder().unwrap(), placeholder().unwrap());
        assert!(one != two && one.len() == 45);
        let swap = Swap::new(vec![
            binding(&one, "s3cr3t", &["a.example"]),
            binding(&two, "other", &["b.example"]),
        ]);
        let text = format!("Bearer {one}");
        assert_eq!(swap.replace("a.example", &text, |_| true).unwrap(), "Bearer s3cr3t");
        assert_eq!(swap.replace("b.example", &text, |_| true), Err(Stray(0)));
        assert_eq!(swap.replace("a.example", &two, |_| true), Err(Stray(1)));
        assert_eq!(swap.replace("a.example", &one, |_| false), Err(Stray(0)), "not there");
        let hex: String = one.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(swap.replace("a.example", &hex, |_| true), Err(Stray(0)), "in disguise");
        assert!(swap.concerns("a.example") && !swap.concerns("c.example"));
        assert!(!format!("{swap:?}").contains("s3cr3t"));
    }
}
