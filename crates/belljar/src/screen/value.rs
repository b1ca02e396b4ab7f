//! What an expression comes to, as far as that can be decided without running it.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

/// Values that one expression is followed to; a name that was bound more often is known by its first.
pub(super) const MAX_CANDIDATES: usize = 4;
/// Text that is put together; no name of anything is longer.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// Items of a list that are followed.
const MAX_ITEMS: usize = 1024;

/// One thing that an expression may come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Something by its full name: a module, a function, `f()` for what a call of `f` gives.
    Name(String),
    Text(String),
    Number(i64),
    List(Vec<Value>),
    /// A function that the program itself defines.
    Function,
    Unknown,
}

/// All that it may come to; empty is unknown.
pub(super) type Values = Vec<Value>;

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Name(_) | Self::Number(_) | Self::List(_) | Self::Function | Self::Unknown => {
                None
            }
        }
    }

    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Text(_) | Self::Number(_) | Self::List(_) | Self::Function | Self::Unknown => {
                None
            }
        }
    }

    pub(super) fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Name(_) | Self::Text(_) | Self::List(_) | Self::Function | Self::Unknown => None,
        }
    }

    /// The items of a list; a text is the list of its characters.
    pub(super) fn items(&self) -> Option<Vec<Self>> {
        match self {
            Self::List(items) => Some(items.clone()),
            Self::Text(text) => {
                Some(text.chars().take(MAX_ITEMS).map(|one| Self::Text(one.into())).collect())
            }
            Self::Name(_) | Self::Number(_) | Self::Function | Self::Unknown => None,
        }
    }

    pub(super) fn list(items: Vec<Self>) -> Self {
        if items.len() > MAX_ITEMS { Self::Unknown } else { Self::List(items) }
    }

    pub(super) fn bounded(text: String) -> Self {
        if text.len() > MAX_TEXT_BYTES { Self::Unknown } else { Self::Text(text) }
    }

    pub(super) fn reversed(&self) -> Self {
        match self {
            Self::Text(text) => Self::Text(text.chars().rev().collect()),
            Self::List(items) => Self::List(items.iter().rev().cloned().collect()),
            Self::Name(_) | Self::Number(_) | Self::Function | Self::Unknown => Self::Unknown,
        }
    }

    /// One item, counted from the end if the index is negative.
    pub(super) fn item(&self, index: i64) -> Self {
        let Some(items) = self.items() else { return Self::Unknown };
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let index = if index < 0 { index.saturating_add(length) } else { index };
        let found = usize::try_from(index).ok().and_then(|index| items.get(index).cloned());
        found.unwrap_or(Self::Unknown)
    }

    /// `a + b` of texts, numbers and lists.
    pub(super) fn plus(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Text(left), Self::Text(right)) => Self::bounded(format!("{left}{right}")),
            (Self::Number(left), Self::Number(right)) => {
                left.checked_add(*right).map_or(Self::Unknown, Self::Number)
            }
            (Self::List(left), Self::List(right)) => {
                Self::list([left.as_slice(), right.as_slice()].concat())
            }
            _ => Self::Unknown,
        }
    }

    /// The items put together with a separator.
    pub(super) fn joined(&self, separator: &str) -> Self {
        let Some(items) = self.items() else { return Self::Unknown };
        let texts: Option<Vec<&str>> = items.iter().map(Self::text).collect();
        texts.map_or(Self::Unknown, |texts| Self::bounded(texts.join(separator)))
    }

    pub(super) fn character(&self) -> Self {
        let code = self.number().and_then(|code| u32::try_from(code).ok());
        code.and_then(char::from_u32).map_or(Self::Unknown, |one| Self::Text(one.into()))
    }

    pub(super) fn decoded_base64(&self) -> Self {
        let Some(text) = self.text() else { return Self::Unknown };
        let text = text.trim_end_matches('=');
        let bytes = STANDARD_NO_PAD.decode(text).or_else(|_| STANDARD.decode(text));
        bytes.map_or(Self::Unknown, Self::of_bytes)
    }

    pub(super) fn decoded_hex(&self) -> Self {
        let Some(text) = self.text() else { return Self::Unknown };
        let digits: Vec<u8> = text.bytes().filter(|one| !one.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        });
        pairs.collect::<Option<Vec<u8>>>().map_or(Self::Unknown, Self::of_bytes)
    }

    fn of_bytes(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or(Self::Unknown, Self::bounded)
    }

    pub(super) fn rotated_13(&self) -> Self {
        let turn = |one: char| match one {
            'a'..='m' | 'A'..='M' => char::from_u32(u32::from(one) + 13).unwrap_or(one),
            'n'..='z' | 'N'..='Z' => char::from_u32(u32::from(one) - 13).unwrap_or(one),
            other => other,
        };
        self.text().map_or(Self::Unknown, |text| Self::Text(text.chars().map(turn).collect()))
    }
}

/// Adds what is not there yet, up to the bound.
pub(super) fn add(to: &mut Values, more: impl IntoIterator<Item = Value>) {
    for value in more {
        if to.len() < MAX_CANDIDATES && !to.contains(&value) {
            to.push(value);
        }
    }
}

/// Every value through a function that may give several.
pub(super) fn map(values: &[Value], with: impl Fn(&Value) -> Value) -> Values {
    let mut all = Values::new();
    add(&mut all, values.iter().map(with));
    all
}

/// Every pair through a function.
pub(super) fn pairs(
    left: &[Value],
    right: &[Value],
    with: impl Fn(&Value, &Value) -> Value,
) -> Values {
    let mut all = Values::new();
    for one in left {
        add(&mut all, right.iter().map(|other| with(one, other)));
    }
    all
}

/// A string's escapes, as Python and JavaScript share them (and `$'…'` of bash).
pub(super) fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(one) = rest.next() {
        if one != '\\' {
            plain.push(one);
            continue;
        }
        let Some(kind) = rest.next() else { break };
        match kind {
            'n' => plain.push('\n'),
            't' => plain.push('\t'),
            'r' => plain.push('\r'),
            'a' => plain.push('\u{7}'),
            'b' => plain.push('\u{8}'),
            'f' => plain.push('\u{c}'),
            'v' => plain.push('\u{b}'),
            '\n' => {}
            'x' => plain.extend(by_number(&mut rest, 2, 16)),
            'u' if rest.as_str().starts_with('{') => {
                let inside = rest.as_str().split('}').next().unwrap_or_default();
                let code = u32::from_str_radix(inside.trim_start_matches('{'), 16).ok();
                plain.extend(code.and_then(char::from_u32));
                rest = rest.as_str()[inside.len()..].chars();
                rest.next();
            }
            'u' => plain.extend(by_number(&mut rest, 4, 16)),
            'U' => plain.extend(by_number(&mut rest, 8, 16)),
            '0'..='7' => {
                let mut digits = String::from(kind);
                while digits.len() < 3 && rest.as_str().starts_with(|c: char| c.is_digit(8)) {
                    digits.extend(rest.next());
                }
                plain.extend(u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32));
            }
            other => plain.push(other),
        }
    }
    plain
}

fn by_number(rest: &mut std::str::Chars<'_>, most: usize, base: u32) -> Option<char> {
    let mut code = 0;
    for _ in 0..most {
        let Some(digit) = rest.clone().next().and_then(|one| one.to_digit(base)) else { break };
        code = code * base + digit;
        rest.next();
    }
    char::from_u32(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn escapes_are_read_as_the_languages_read_them() {
        for (written, meant) in [
            (r"\x6f\163", "os"),
            (r"\u006f\u{73}", "os"),
            (r"\U0000006fs", "os"),
            (r"a\nb\\", "a\nb\\"),
            (r"\u{110000}x", "x"),
            (r"\u{", ""),
            (r"\", ""),
        ] {
            assert_eq!(unescaped(written), meant, "{written}");
        }
    }

    #[test]
    fn texts_come_apart_and_together() {
        assert_eq!(text("metsys").reversed(), text("system"));
        assert_eq!(Value::list(vec![text("o"), text("s")]).joined(""), text("os"));
        assert_eq!(text("b3M=").decoded_base64(), text("os"));
        assert_eq!(text("6f 73").decoded_hex(), text("os"));
        assert_eq!(text("flfgrz").rotated_13(), text("system"));
        assert_eq!(Value::Number(111).character(), text("o"));
        assert_eq!(text("abc").item(-1), text("c"));
        assert_eq!(text("abc").item(i64::MIN), Value::Unknown);
    }

    #[test]
    fn what_grows_without_end_is_unknown() {
        let long = text(&"x".repeat(MAX_TEXT_BYTES));
        assert_eq!(long.plus(&long), Value::Unknown);
        assert_eq!(Value::list(vec![Value::Unknown; MAX_ITEMS + 1]), Value::Unknown);
    }
}
