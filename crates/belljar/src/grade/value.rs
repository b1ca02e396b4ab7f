//! Values as a candidate takes and returns them, with their exact types, and how they are written.
//!
//! In case files, in results and on the way into and out of a sandbox they have one form: JSON, with an
//! object of one key for what JSON lacks: `{"$tuple": […]}`, `{"$set": […]}`, `{"$frozenset": […]}`,
//! `{"$bytes": "base64"}`, `{"$complex": [re, im]}`, `{"$float": "nan"}`, `{"$int": "123…"}`,
//! `{"$dict": [[key, value], …]}`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::integer::Integer;

/// Values inside each other; serde_json itself stops at 128 levels, of which a dict takes three.
pub const MAX_DEPTH: usize = 40;
/// Values in one answer.
pub const MAX_VALUES: usize = 1_000_000;

/// A value of the candidate's language.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema)]
#[schemars(with = "serde_json::Value")]
pub enum Value {
    None,
    Bool(bool),
    Int(Integer),
    Float(f64),
    Complex(f64, f64),
    Str(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Set(Vec<Value>),
    FrozenSet(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    /// An object that stays where it is, by its number there; only between an assert and its candidate.
    Object(u32),
}

impl Value {
    /// The types of what can be passed out.
    pub(crate) const TYPES: [&str; 12] = [
        "NoneType",
        "bool",
        "int",
        "float",
        "complex",
        "str",
        "bytes",
        "list",
        "tuple",
        "set",
        "frozenset",
        "dict",
    ];

    /// The type's name in Python.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Complex(..) => "complex",
            Self::Str(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Set(_) => "set",
            Self::FrozenSet(_) => "frozenset",
            Self::Dict(_) => "dict",
            Self::Object(_) => "object",
        }
    }

    /// Whether an object that cannot leave its sandbox is in it.
    pub(crate) fn holds_object(&self) -> bool {
        match self {
            Self::Object(_) => true,
            Self::List(all) | Self::Tuple(all) | Self::Set(all) | Self::FrozenSet(all) => {
                all.iter().any(Self::holds_object)
            }
            Self::Dict(pairs) => {
                pairs.iter().any(|(key, value)| key.holds_object() || value.holds_object())
            }
            Self::None
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Float(_)
            | Self::Complex(..)
            | Self::Str(_)
            | Self::Bytes(_) => false,
        }
    }

    /// Reads JSON of anybody: bounded in depth and in the number of values.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        check_bounds(json)?;
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number.into())
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Int(i64::from(number).into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

/// Counts values before any memory is spent on them: each takes more of it than its text does.
pub(crate) fn check_bounds(json: &[u8]) -> Result<(), String> {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    if values > MAX_VALUES {
        return Err(format!("holds more than {MAX_VALUES} values"));
    }
    Ok(())
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(Integer::Small(value)) => serializer.serialize_i64(*value),
            Self::Int(Integer::Large(digits)) => tagged(serializer, "$int", digits),
            Self::Float(value) if value.is_finite() => serializer.serialize_f64(*value),
            Self::Float(value) => tagged(serializer, "$float", float_word(*value)),
            Self::Complex(re, im) => {
                tagged(serializer, "$complex", &[Self::Float(*re), Self::Float(*im)])
            }
            Self::Str(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => tagged(serializer, "$bytes", &STANDARD.encode(bytes)),
            Self::List(all) => serializer.collect_seq(all),
            Self::Tuple(all) => tagged(serializer, "$tuple", all),
            Self::Set(all) => tagged(serializer, "$set", all),
            Self::FrozenSet(all) => tagged(serializer, "$frozenset", all),
            Self::Dict(pairs) => dict(serializer, pairs),
            Self::Object(number) => tagged(serializer, "$object", number),
        }
    }
}

fn tagged<S: Serializer, T: Serialize + ?Sized>(
    serializer: S,
    tag: &str,
    value: &T,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(tag, value)?;
    map.end()
}

fn float_word(value: f64) -> &'static str {
    match value {
        _ if value.is_nan() => "nan",
        _ if value > 0.0 => "inf",
        _ => "-inf",
    }
}

/// A plain object where every key is a string that cannot be taken for a tag.
fn dict<S: Serializer>(serializer: S, pairs: &[(Value, Value)]) -> Result<S::Ok, S::Error> {
    let plain = |pair: &(Value, Value)| matches!(&pair.0, Value::Str(key) if !key.starts_with('$'));
    if !pairs.iter().all(plain) {
        return tagged(serializer, "$dict", pairs);
    }
    let mut map = serializer.serialize_map(Some(pairs.len()))?;
    for (key, value) in pairs {
        if let Value::Str(key) = key {
            map.serialize_entry(key, value)?;
        }
    }
    map.end()
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Str(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Str(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = seq.next_element()? {
            all.push(value);
        }
        Ok(Value::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Some(first) = map.next_key::<String>()? else { return Ok(Value::Dict(Vec::new())) };
        if first.starts_with('$') {
            let value = tag(&first, &mut map)?;
            return match map.next_key::<String>()? {
                None => Ok(value),
                Some(more) => Err(de::Error::custom(format!(
                    "\"{more}\" stands beside \"{first}\": a key with $ stands alone; write \
                     {{\"$dict\": [[key, value], …]}} for a dict with such keys"
                ))),
            };
        }
        let mut seen = std::collections::BTreeSet::new();
        let mut pairs = Vec::new();
        let mut next = Some(first);
        while let Some(key) = next {
            if key.starts_with('$') || !seen.insert(key.clone()) {
                let why = format!("the key \"{key}\" stands twice, or is a tag beside other keys");
                return Err(de::Error::custom(why));
            }
            pairs.push((Value::Str(key), map.next_value()?));
            next = map.next_key()?;
        }
        Ok(Value::Dict(pairs))
    }
}

fn tag<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Value, A::Error> {
    let wrong = |why: &str| de::Error::custom(format!("\"{name}\" {why}"));
    Ok(match name {
        "$tuple" => Value::Tuple(map.next_value()?),
        "$set" => Value::Set(map.next_value()?),
        "$frozenset" => Value::FrozenSet(map.next_value()?),
        "$dict" => Value::Dict(map.next_value()?),
        "$object" => Value::Object(map.next_value()?),
        "$bytes" => {
            let text: String = map.next_value()?;
            Value::Bytes(STANDARD.decode(text).map_err(|_| wrong("is not base64"))?)
        }
        "$complex" => match map.next_value::<[Value; 2]>()? {
            [re, im] => match (re.as_float(), im.as_float()) {
                (Some(re), Some(im)) => Value::Complex(re, im),
                _ => return Err(wrong("needs two numbers")),
            },
        },
        "$float" => match map.next_value::<String>()?.as_str() {
            "nan" => Value::Float(f64::NAN),
            "inf" => Value::Float(f64::INFINITY),
            "-inf" => Value::Float(f64::NEG_INFINITY),
            _ => return Err(wrong("is one of nan, inf, -inf")),
        },
        "$int" => {
            let digits: String = map.next_value()?;
            Value::Int(digits.parse().map_err(|why: String| wrong(&why))?)
        }
        _ => {
            return Err(wrong(
                "is no tag: there are $tuple, $set, $frozenset, $bytes, $complex, $float, $int and \
                 $dict",
            ));
        }
    })
}

impl Value {
    /// A number that is a float, or written as one could be.
    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            Self::Int(value) => Some(value.to_f64()),
            Self::Bool(value) => Some(f64::from(u8::from(*value))),
            Self::None
            | Self::Complex(..)
            | Self::Str(_)
            | Self::Bytes(_)
            | Self::List(_)
            | Self::Tuple(_)
            | Self::Set(_)
            | Self::FrozenSet(_)
            | Self::Dict(_)
            | Self::Object(_) => None,
        }
    }
}

/// JSON in which whole numbers that no machine word holds are written as `{"$int": "…"}`: a reader of
/// JSON would make floats of them and lose their last digits.
pub fn keep_large_integers(json: &str) -> std::borrow::Cow<'_, str> {
    const MOST_SURELY_SMALL: usize = 18;
    let bytes = json.as_bytes();
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    let (mut in_string, mut escaped) = (false, false);
    while at < bytes.len() {
        match bytes[at] {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let rest = &bytes[at..];
                let is_part =
                    |one: &u8| matches!(one, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = rest.iter().take_while(|one| is_part(one)).count().max(1);
                let token = &json[at..at + length];
                let digits = token.strip_prefix('-').unwrap_or(token);
                let whole = digits.bytes().all(|one| one.is_ascii_digit());
                if whole && digits.len() > MOST_SURELY_SMALL && !is_word(token) {
                    out.push_str(&json[copied..at]);
                    out.push_str("{\"$int\":\"");
                    out.push_str(token);
                    out.push_str("\"}");
                    copied = at + length;
                }
                at += length;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return json.into();
    }
    out.push_str(&json[copied..]);
    out.into()
}

fn is_word(token: &str) -> bool {
    token.parse::<i64>().is_ok() || token.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Value {
        Value::read(json.as_bytes()).unwrap()
    }

    #[test]
    fn every_type_is_written_and_read_back() {
        for json in [
            "null",
            "true",
            "1",
            "-0.0",
            "1.5",
            "1e300",
            "\"é\\u0000\"",
            "[1,[2]]",
            "{}",
            "{\"a\":{\"b\":null}}",
            "{\"$tuple\":[1,\"x\"]}",
            "{\"$set\":[1,2]}",
            "{\"$frozenset\":[]}",
            "{\"$bytes\":\"/w==\"}",
            "{\"$complex\":[1.0,-0.0]}",
            "{\"$float\":\"inf\"}",
            "{\"$float\":\"-inf\"}",
            "{\"$int\":\"123456789012345678901234567890\"}",
            "{\"$dict\":[[1,2],[{\"$tuple\":[]},3]]}",
            "{\"$dict\":[[\"$x\",1]]}",
        ] {
            let value = read(json);
            assert_eq!(read(&serde_json::to_string(&value).unwrap()), value, "{json}");
        }
        assert!(matches!(read("{\"$float\":\"nan\"}"), Value::Float(one) if one.is_nan()));
        assert_ne!(read("1"), read("1.0"));
        assert_ne!(read("[1]"), read("{\"$tuple\":[1]}"));
    }

    #[test]
    fn what_is_no_value_is_refused_with_what_would_be() {
        for (json, word) in [
            ("{\"$tupel\":[1]}", "$tuple"),
            ("{\"$tuple\":[1],\"b\":2}", "stands beside"),
            ("{\"a\":1,\"a\":2}", "twice"),
            ("{\"$bytes\":\"?\"}", "base64"),
            ("{\"$int\":\"1x\"}", "$int"),
            ("{\"$float\":\"1\"}", "nan"),
        ] {
            let error = Value::read(json.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{json}: {error}");
        }
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(Value::read(deep.as_bytes()).is_err());
        let many = format!("[{}1]", "1,".repeat(MAX_VALUES));
        assert!(Value::read(many.as_bytes()).unwrap_err().contains("values"));
        let text = format!("\"{}\"", ",".repeat(MAX_VALUES));
        assert!(Value::read(text.as_bytes()).is_ok(), "commas in a string are no values");
    }

    #[test]
    fn large_whole_numbers_in_json_keep_their_digits() {
        let digits = "123456789012345678901234567890";
        let json = format!("[{digits}, -{digits}, \"{digits}\", 1.{digits}, 7]");
        let kept = keep_large_integers(&json);
        let Value::List(all) = read(&kept) else { panic!("{kept}") };
        assert_eq!(all[0], Value::Int(digits.parse().unwrap()));
        assert_eq!(all[1], Value::Int(format!("-{digits}").parse().unwrap()));
        assert_eq!(all[2], Value::from(digits));
        assert!(matches!(all[3], Value::Float(_)));
        for words in ["[1, -2]", "[18446744073709551615, -9223372036854775808]"] {
            assert!(matches!(keep_large_integers(words), std::borrow::Cow::Borrowed(_)), "{words}");
        }
    }
}
