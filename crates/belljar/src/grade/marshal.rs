//! Plain values in Python's own binary form (`marshal`, version 2), which it reads and writes without running a line of
//! Python: every page that a copy of a candidate touches costs it a fault, and JSON touches a hundred.
//!
//! Only what is short and plain goes this way. Everything else is JSON, see [`super::value`].

use super::integer::Integer;
use super::value::{MAX_DEPTH, Value};

/// Values in one answer; the inside sends more than 2000 as JSON.
const MAX_PLAIN_VALUES: usize = 4000;

/// Writes it, unless that takes more than this form is used for.
pub(super) fn write(value: &Value, out: &mut Vec<u8>) -> Option<()> {
    match value {
        Value::None => out.push(b'N'),
        Value::Bool(true) => out.push(b'T'),
        Value::Bool(false) => out.push(b'F'),
        Value::Int(Integer::Small(number)) => write_integer(*number, out),
        Value::Float(number) => {
            out.push(b'g');
            out.extend(number.to_le_bytes());
        }
        Value::Complex(re, im) => {
            out.push(b'y');
            out.extend(re.to_le_bytes());
            out.extend(im.to_le_bytes());
        }
        Value::Str(text) => write_bytes(b'u', text.as_bytes(), out)?,
        Value::Bytes(bytes) => write_bytes(b's', bytes, out)?,
        Value::List(all) => write_all(b'[', all, out)?,
        Value::Tuple(all) => write_all(b'(', all, out)?,
        Value::Set(all) => write_all(b'<', all, out)?,
        Value::FrozenSet(all) => write_all(b'>', all, out)?,
        Value::Dict(pairs) => {
            out.push(b'{');
            for (key, value) in pairs {
                write(key, out)?;
                write(value, out)?;
            }
            out.push(b'0');
        }
        Value::Int(Integer::Large(_)) | Value::Object(_) => return None,
    }
    Some(())
}

fn write_integer(number: i64, out: &mut Vec<u8>) {
    if let Ok(short) = i32::try_from(number) {
        out.push(b'i');
        out.extend(short.to_le_bytes());
        return;
    }
    let mut rest = number.unsigned_abs();
    let mut digits = Vec::new();
    while rest > 0 {
        digits.extend(u16::try_from(rest & 0x7fff).unwrap_or(0).to_le_bytes());
        rest >>= 15;
    }
    let count = i32::try_from(digits.len() / 2).unwrap_or(0);
    out.push(b'l');
    out.extend((if number < 0 { -count } else { count }).to_le_bytes());
    out.extend(digits);
}

fn write_bytes(code: u8, bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.push(code);
    out.extend(i32::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend(bytes);
    Some(())
}

pub(super) fn write_all(code: u8, all: &[Value], out: &mut Vec<u8>) -> Option<()> {
    out.push(code);
    out.extend(i32::try_from(all.len()).ok()?.to_le_bytes());
    all.iter().try_for_each(|one| write(one, out))
}

/// Reads what a candidate's side wrote; `None` if it is not exactly one plain value.
pub(super) fn read(bytes: &[u8]) -> Option<Value> {
    let mut reader = Reader { rest: bytes, values: 0 };
    let value = reader.value(0)?;
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a [u8],
    values: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    fn length(&mut self) -> Option<usize> {
        let length = i32::from_le_bytes(self.take()?);
        // Every value takes a byte at least, so no more are there than bytes.
        usize::try_from(length).ok().filter(|length| *length <= self.rest.len())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.length()?;
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken.to_vec())
    }

    fn all(&mut self, depth: usize) -> Option<Vec<Value>> {
        let length = self.length().filter(|_| depth < MAX_DEPTH)?;
        (0..length).map(|_| self.value(depth + 1)).collect()
    }

    fn float(&mut self) -> Option<f64> {
        self.take().map(f64::from_le_bytes)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.values += 1;
        if self.values > MAX_PLAIN_VALUES {
            return None;
        }
        let [code] = self.take()?;
        Some(match code {
            b'N' => Value::None,
            b'T' => Value::Bool(true),
            b'F' => Value::Bool(false),
            b'i' => Value::from(i32::from_le_bytes(self.take()?)),
            b'l' => Value::from(self.integer()?),
            b'g' => Value::Float(self.float()?),
            b'y' => Value::Complex(self.float()?, self.float()?),
            b'u' => Value::Str(String::from_utf8(self.bytes()?).ok()?),
            b's' => Value::Bytes(self.bytes()?),
            b'[' => Value::List(self.all(depth)?),
            b'(' => Value::Tuple(self.all(depth)?),
            b'<' => Value::Set(self.all(depth)?),
            b'>' => Value::FrozenSet(self.all(depth)?),
            b'{' => Value::Dict(self.pairs(depth)?),
            _ => return None,
        })
    }

    fn integer(&mut self) -> Option<i64> {
        let length = i32::from_le_bytes(self.take()?);
        let digits = length.unsigned_abs();
        if digits > 5 {
            return None; // 5 × 15 bits hold every i64
        }
        let mut whole = 0_i128;
        for at in 0..digits {
            whole |= i128::from(u16::from_le_bytes(self.take()?) & 0x7fff) << (15 * at);
        }
        i64::try_from(if length < 0 { -whole } else { whole }).ok()
    }

    fn pairs(&mut self, depth: usize) -> Option<Vec<(Value, Value)>> {
        let mut pairs = Vec::new();
        if depth >= MAX_DEPTH {
            return None;
        }
        while self.rest.first()? != &b'0' {
            pairs.push((self.value(depth + 1)?, self.value(depth + 1)?));
        }
        self.take::<1>()?;
        Some(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        write(value, &mut out).unwrap();
        out
    }

    #[test]
    fn plain_values_come_back_as_they_went() {
        let numbers = [0, 1, -1, i64::MAX, i64::MIN, 1 << 31, -(1 << 31), (1 << 45) + 7];
        let all = Value::List(vec![
            Value::None,
            Value::Bool(true),
            Value::Bool(false),
            Value::Tuple(numbers.into_iter().map(Value::from).collect()),
            Value::Float(-0.5),
            Value::Complex(1.5, f64::INFINITY),
            "grün".into(),
            Value::Bytes(vec![0, 255, b'\n']),
            Value::Set(vec![1.into()]),
            Value::FrozenSet(vec![]),
            Value::Dict(vec![("a".into(), Value::List(vec![])), (2.into(), Value::None)]),
        ]);
        assert_eq!(read(&written(&all)), Some(all));
        assert!(
            matches!(read(&written(&Value::Float(f64::NAN))), Some(Value::Float(nan)) if nan.is_nan())
        );
    }

    /// `marshal.dumps(…, 2)` of Python 3.11.
    #[test]
    fn it_is_the_form_that_python_writes() {
        let nested = b"[\x03\x00\x00\x00i\x05\x00\x00\x00(\x01\x00\x00\x00u\x01\x00\x00\x00ag\x00\x00\x00\x00\x00\x00\xf8?";
        let value = Value::List(vec![5.into(), Value::Tuple(vec!["a".into()]), Value::Float(1.5)]);
        assert_eq!(written(&value), nested);
        assert_eq!(written(&(1_i64 << 40).into()), b"l\x03\x00\x00\x00\x00\x00\x00\x00\x00\x04");
    }

    #[test]
    fn what_is_no_plain_value_is_not_read() {
        let deep = [b"[\x01\x00\x00\x00".repeat(MAX_DEPTH + 1), b"N".to_vec()].concat();
        let many = [b"[\x00\x20\x00\x00".to_vec(), b"N".repeat(0x2000)].concat();
        let cases: [&[u8]; 11] = [
            b"",
            b"NN",
            b"i\x01",
            b"c\x00\x00\x00\x00",
            b"r\x00\x00\x00\x00",
            b"u\x02\x00\x00\x00\xff\xff",
            b"[\xff\xff\xff\x7fN",
            b"[\xff\xff\xff\xffN",
            b"{N",
            &deep,
            &many,
        ];
        for bytes in cases {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
        let mut out = Vec::new();
        let large = Value::Int("1".repeat(30).parse().unwrap());
        assert_eq!(write(&large, &mut out), None);
    }
}
