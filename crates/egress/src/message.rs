//! DNS messages, as far as names and their addresses go (RFC 1035). What is not understood is not there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::names;

pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;
const CNAME: u16 = 5;
const PTR: u16 = 12;
const OPT: u16 = 41;
const IN: u16 = 1;

const HEADER: usize = 12;
const RESPONSE: u8 = 0x80;
const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;
const OPCODE: u8 = 0x78;

/// Aliases that are followed, and addresses that are kept.
const MAX_ALIASES: usize = 16;
pub(crate) const MAX_ADDRESSES: usize = 16;
/// Jumps within one name: there are no more labels than that.
const MAX_JUMPS: usize = 128;

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Fine = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotImplemented = 4,
}

/// A question from inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    id: u16,
    flags: u8,
    /// As it came, to be answered in its own words.
    asked: Vec<u8>,
    /// `None` for what is no host's name.
    pub name: Option<String>,
    /// As far as it can be shown.
    pub shown: String,
    pub kind: u16,
}

impl Question {
    /// One plain question; anything else is `None`, or the code that it deserves.
    pub(crate) fn read(bytes: &[u8]) -> Option<Result<Self, Vec<u8>>> {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        if header[2] & RESPONSE != 0 {
            return None; // an answer to an answer would never end
        }
        let id = u16::from_be_bytes([header[0], header[1]]);
        let wrong = |code| Some(Err(answer_header(id, header[2], code, 0, 0).to_vec()));
        if header[2] & OPCODE != 0 {
            return wrong(Code::NotImplemented);
        }
        if header[4..6] != [0, 1] {
            return wrong(Code::Malformed);
        }
        let Some((labels, end)) = read_name(bytes, HEADER) else {
            return wrong(Code::Malformed);
        };
        let Some(&[k0, k1, c0, c1]) = bytes.get(end..).and_then(<[u8]>::first_chunk) else {
            return wrong(Code::Malformed);
        };
        if u16::from_be_bytes([c0, c1]) != IN {
            return wrong(Code::NotImplemented);
        }
        let text = String::from_utf8(labels.join(&b'.')).ok();
        // A dot within a label would make two names one.
        let dotted = labels.iter().any(|label| label.contains(&b'.'));
        Some(Ok(Self {
            id,
            flags: header[2],
            asked: bytes[HEADER..end + 4].to_vec(),
            name: text.as_deref().filter(|_| !dotted).and_then(names::name),
            shown: labels
                .iter()
                .map(|one| one.escape_ascii().to_string())
                .collect::<Vec<_>>()
                .join("."),
            kind: u16::from_be_bytes([k0, k1]),
        }))
    }

    /// Who looks up an address of ours backwards is not after a name.
    pub(crate) fn is_reverse(&self) -> bool {
        self.kind == PTR
    }

    pub(crate) fn answer(&self, code: Code, address: Option<(Ipv4Addr, u32)>) -> Vec<u8> {
        let answers = u16::from(address.is_some());
        let mut bytes = answer_header(self.id, self.flags, code, 1, answers).to_vec();
        bytes.extend(&self.asked);
        if let Some((address, ttl)) = address {
            bytes.extend([0xc0, 0x0c]); // the name that was asked for
            bytes.extend(A.to_be_bytes());
            bytes.extend(IN.to_be_bytes());
            bytes.extend(ttl.to_be_bytes());
            bytes.extend([0, 4]);
            bytes.extend(address.octets());
        }
        bytes
    }
}

fn answer_header(id: u16, flags: u8, code: Code, questions: u16, answers: u16) -> [u8; HEADER] {
    let [i0, i1] = id.to_be_bytes();
    let [q0, q1] = questions.to_be_bytes();
    let [a0, a1] = answers.to_be_bytes();
    let flags = RESPONSE | (flags & RECURSION_DESIRED);
    [i0, i1, flags, RECURSION_AVAILABLE | code as u8, q0, q1, a0, a1, 0, 0, 0, 0]
}

/// A question to the outside, with room for a large answer.
pub(crate) fn question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(0));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(IN.to_be_bytes());
    bytes.push(0);
    bytes.extend(OPT.to_be_bytes());
    bytes.extend(1232u16.to_be_bytes()); // what passes everywhere unbroken
    bytes.extend([0; 6]);
    bytes
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With for how many seconds they hold.
    Addresses(Vec<IpAddr>, u32),
    NoSuchName,
    /// It did not fit: to be asked for again over TCP.
    Truncated,
    Failed,
}

/// Reads the answer to a question; `None` when it is not one.
pub(crate) fn read_answer(bytes: &[u8], id: u16, name: &str, kind: u16) -> Option<Answer> {
    let header: &[u8; HEADER] = bytes.first_chunk()?;
    let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if number(0) != id || header[2] & RESPONSE == 0 || number(4) != 1 {
        return None;
    }
    let (asked, mut at) = read_name(bytes, HEADER)?;
    let same =
        |labels: &[Vec<u8>], name: &str| labels.join(&b'.').eq_ignore_ascii_case(name.as_bytes());
    let rest = bytes.get(at..)?.first_chunk::<4>()?;
    if !same(&asked, name) || u16::from_be_bytes([rest[0], rest[1]]) != kind {
        return None;
    }
    at += 4;
    match header[3] & 0x0f {
        _ if header[2] & TRUNCATED != 0 => return Some(Answer::Truncated),
        0 => {}
        3 => return Some(Answer::NoSuchName),
        _ => return Some(Answer::Failed),
    }
    let (mut wanted, mut aliases) = (name.to_ascii_lowercase(), 0);
    let (mut found, mut holds) = (Vec::new(), u32::MAX);
    for _ in 0..number(6) {
        let Some(record) = Record::read(bytes, at) else {
            return Some(Answer::Failed);
        };
        at = record.end;
        if !same(&record.owner, &wanted) || record.class != IN {
            continue;
        }
        if record.kind == CNAME && aliases < MAX_ALIASES {
            let (to, _) = read_name(bytes, record.start)?;
            (wanted, aliases) =
                (String::from_utf8(to.join(&b'.')).ok()?.to_ascii_lowercase(), aliases + 1);
            holds = holds.min(record.ttl);
        } else if record.kind == kind && found.len() < MAX_ADDRESSES {
            found.extend(address(kind, bytes.get(record.start..record.end)?));
            holds = holds.min(record.ttl);
        }
    }
    Some(Answer::Addresses(found, holds))
}

fn address(kind: u16, data: &[u8]) -> Option<IpAddr> {
    match kind {
        A => <[u8; 4]>::try_from(data).ok().map(|four| Ipv4Addr::from(four).into()),
        AAAA => <[u8; 16]>::try_from(data).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

struct Record {
    owner: Vec<Vec<u8>>,
    kind: u16,
    class: u16,
    ttl: u32,
    start: usize,
    end: usize,
}

impl Record {
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let (owner, at) = read_name(bytes, at)?;
        let fixed = bytes.get(at..)?.first_chunk::<10>()?;
        let start = at + 10;
        let end = start + usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        bytes.get(start..end)?;
        Some(Self {
            owner,
            kind: u16::from_be_bytes([fixed[0], fixed[1]]),
            class: u16::from_be_bytes([fixed[2], fixed[3]]),
            ttl: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            start,
            end,
        })
    }
}

/// The labels of a name, and where what follows it begins.
fn read_name(bytes: &[u8], start: usize) -> Option<(Vec<Vec<u8>>, usize)> {
    let (mut labels, mut at, mut end, mut total) = (Vec::new(), start, None, 0);
    for _ in 0..MAX_JUMPS {
        let length = usize::from(*bytes.get(at)?);
        match length & 0xc0 {
            0 if length == 0 => return Some((labels, end.unwrap_or(at + 1))),
            0 => {
                labels.push(bytes.get(at + 1..at + 1 + length)?.to_vec());
                at += 1 + length;
                total += 1 + length;
            }
            0xc0 => {
                end = end.or(Some(at + 2));
                at = (length & 0x3f) << 8 | usize::from(*bytes.get(at + 1)?);
            }
            _ => return None,
        }
        if total > 255 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply(name: &str, kind: u16, records: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
        let asked = question(7, name, kind);
        let mut bytes = vec![0, 7, 0x81, 0x80, 0, 1];
        bytes.extend(u16::try_from(records.len()).unwrap().to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&asked[HEADER..asked.len() - 11]);
        for (owner, kind, data) in records {
            bytes.extend(encoded(owner));
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1, 0, 0, 0, 60]);
            bytes.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    fn encoded(name: &str) -> Vec<u8> {
        let labels = name
            .split('.')
            .flat_map(|one| [&[u8::try_from(one.len()).unwrap()][..], one.as_bytes()].concat());
        labels.chain([0]).collect()
    }

    #[test]
    fn a_question_is_answered_in_its_own_words() {
        let bytes = question(0x1234, "A.Example", A);
        let asked = Question::read(&bytes).unwrap().unwrap();
        assert_eq!((asked.name.as_deref(), asked.kind), (Some("a.example"), A));
        let answer = asked.answer(Code::Fine, Some((Ipv4Addr::new(198, 18, 1, 0), 5)));
        let wanted = Answer::Addresses(vec!["198.18.1.0".parse().unwrap()], 5);
        assert_eq!(read_answer(&answer, 0x1234, "a.example", A), Some(wanted));
        let none = asked.answer(Code::NoSuchName, None);
        assert_eq!(read_answer(&none, 0x1234, "a.example", A), Some(Answer::NoSuchName));
        assert_eq!(read_answer(&none, 0x1235, "a.example", A), None, "another's");
        assert_eq!(read_answer(&none, 0x1234, "b.example", A), None, "of another name");
        assert_eq!(Question::read(&answer), None, "no question");
    }

    #[test]
    fn aliases_are_followed_and_strangers_are_not() {
        let four = |last| vec![192, 0, 2, last];
        let bytes = reply(
            "a.example",
            A,
            &[
                ("a.example", CNAME, encoded("b.example")),
                ("evil.example", A, four(9)),
                ("b.example", A, four(1)),
                ("b.example", A, four(2)),
            ],
        );
        let wanted = vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        assert_eq!(read_answer(&bytes, 7, "a.example", A), Some(Answer::Addresses(wanted, 60)));
    }

    #[test]
    fn of_a_thousand_addresses_a_few_are_kept() {
        let records = vec![("a.example", A, vec![192, 0, 2, 1]); 2000];
        match read_answer(&reply("a.example", A, &records), 7, "a.example", A) {
            Some(Answer::Addresses(found, _)) => assert_eq!(found.len(), MAX_ADDRESSES),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_that_goes_in_circles_is_none() {
        let mut bytes = question(7, "a.example", A);
        bytes[HEADER] = 0xc0;
        bytes[HEADER + 1] = u8::try_from(HEADER).unwrap();
        assert!(Question::read(&bytes).unwrap().is_err());
    }

    #[test]
    fn a_dot_within_a_label_does_not_make_an_allowed_name() {
        let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9];
        bytes.extend(b"a.example");
        bytes.extend([0, 0, 1, 0, 1]);
        assert_eq!(Question::read(&bytes).unwrap().unwrap().name, None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            Question::read(&bytes);
            read_answer(&bytes, 7, "a.example", A);
            let mut answer = reply("a.example", A, &[("a.example", A, vec![192, 0, 2, 1])]);
            answer.extend(&bytes);
            answer[7] = 200;
            read_answer(&answer, 7, "a.example", A);
        }
    }
}
