//! A call in words: its name and the arguments that matter, as in `mount(target="/mnt", flags=MS_BIND)`.

use belljar_jail::tried::Tried;

use super::address::Address;
use super::flags::FILE_TYPES;
use super::shapes::{Arg, Names, Shape, find};
use super::shown;
use crate::seccomp;

/// What is written where nothing could be read.
const UNREAD: &str = "?";

/// A call that was seen, with its arguments in the order of its shape.
#[derive(Debug)]
pub(super) struct Call {
    pub name: String,
    shape: Option<&'static Shape>,
}

impl Call {
    pub(super) fn of(tried: &Tried) -> Self {
        let name = seccomp::name(tried.call);
        Self {
            name: name.map_or_else(|| format!("call {}", tried.call), str::to_owned),
            shape: name.and_then(find),
        }
    }

    /// All of it, for people.
    pub(super) fn describe(&self, tried: &Tried) -> String {
        let Some(shape) = self.shape else {
            return format!("{}()", self.name);
        };
        let mut read = tried.read.iter();
        let mut words = Vec::new();
        for (arg, value) in shape.args.iter().zip(tried.args) {
            words.extend(word(arg, value, &mut read));
        }
        format!("{}({})", self.name, words.join(", "))
    }

    /// What was read of the argument with this name.
    pub(super) fn read<'a>(&self, tried: &'a Tried, wanted: &str) -> Option<&'a [u8]> {
        let mut read = tried.read.iter();
        for arg in self.shape?.args {
            let (Arg::Text(name) | Arg::Texts(name) | Arg::Address(name) | Arg::File(name)) = arg
            else {
                continue;
            };
            let found = read.next()?;
            if *name == wanted {
                return found.as_deref();
            }
        }
        None
    }

    pub(super) fn address(&self, tried: &Tried) -> Option<Address> {
        self.read(tried, "address").map(Address::read)
    }
}

fn word<'a>(
    arg: &Arg,
    value: u64,
    read: &mut impl Iterator<Item = &'a Option<Vec<u8>>>,
) -> Option<String> {
    let mut next = || read.next().and_then(Option::as_deref);
    let low = value & 0xffff_ffff;
    let signed = u32::try_from(low).map_or(0, u32::cast_signed);
    let (name, text) = match *arg {
        Arg::Text(name) => {
            let text = next();
            let text =
                text.map_or_else(|| if value == 0 { "NULL" } else { UNREAD }.into(), shown::quoted);
            (name, text)
        }
        Arg::Texts(name) => {
            let words = next().map(|text| format!("[{}]", shown::command(text, usize::MAX)));
            (name, words.unwrap_or_else(|| UNREAD.into()))
        }
        Arg::Address(name) => {
            (name, next().map_or_else(|| UNREAD.into(), |bytes| Address::read(bytes).to_string()))
        }
        Arg::File(name) => {
            let path = next().map(shown::plain);
            let text = match (signed, path) {
                (-100, _) => return None, // AT_FDCWD: nothing to say
                (number, Some(path)) => format!("{number}<{path}>"),
                (number, None) => number.to_string(),
            };
            (name, text)
        }
        Arg::Number(name) => (name, signed.to_string()),
        Arg::Size(name) => (name, value.to_string()),
        Arg::One(name, names) => (name, one(low, names)),
        Arg::Bits(name, names) => (name, bits(low, names)),
        Arg::Mode(_) if low == 0 => return None,
        Arg::Mode(name) => (name, format!("0{low:o}")),
        Arg::FileType(name) => (name, one(low & 0o170_000, FILE_TYPES)),
        Arg::Device(name) => {
            (name, format!("{}:{}", rustix::fs::major(value), rustix::fs::minor(value)))
        }
        Arg::Skip => return None,
    };
    Some(format!("{name}={text}"))
}

fn one(value: u64, names: Names) -> String {
    let known = names.iter().find(|(number, _)| *number == value);
    known.map_or_else(|| format!("{value:#x}"), |(_, name)| (*name).to_owned())
}

fn bits(value: u64, names: Names) -> String {
    let mut left = value;
    let mut found = Vec::new();
    for (bits, name) in names {
        if left & bits == *bits {
            found.push((*name).to_owned());
            left &= !bits;
        }
    }
    if left != 0 || found.is_empty() {
        found.push(if left == 0 { "0".to_owned() } else { format!("{left:#x}") });
    }
    found.join("|")
}
