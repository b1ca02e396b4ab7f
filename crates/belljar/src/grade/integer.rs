//! Whole numbers of any length, as far as comparing and showing them goes.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Digits of the longest whole number: what the inside refuses to pass on as well.
const MAX_DIGITS: usize = 100_000;

/// A whole number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Integer {
    Small(i64),
    /// Decimal digits after an optional minus sign, without leading zeros; never what fits an `i64`.
    Large(String),
}

impl From<i64> for Integer {
    fn from(value: i64) -> Self {
        Self::Small(value)
    }
}

impl From<u64> for Integer {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or_else(|_| Self::Large(value.to_string()), Self::Small)
    }
}

impl FromStr for Integer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(small) = text.parse() {
            return Ok(Self::Small(small));
        }
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        let bytes = digits.as_bytes();
        if bytes.is_empty() || bytes.len() > MAX_DIGITS || !bytes.iter().all(u8::is_ascii_digit) {
            return Err(format!("must be decimal digits, at most {MAX_DIGITS}"));
        }
        let digits = digits.trim_start_matches('0');
        let whole = format!("{sign}{digits}");
        // With the zeros gone it may fit after all.
        Ok(match digits {
            "" => Self::Small(0),
            _ => whole.parse().map_or(Self::Large(whole), Self::Small),
        })
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small(value) => write!(f, "{value}"),
            Self::Large(digits) => f.write_str(digits),
        }
    }
}

impl Integer {
    pub(crate) fn to_f64(&self) -> f64 {
        match self {
            #[expect(
                clippy::cast_precision_loss,
                reason = "the nearest float is what is asked for"
            )]
            Self::Small(value) => *value as f64,
            Self::Large(digits) => digits.parse().unwrap_or(f64::NAN),
        }
    }

    /// Exactly, as Python compares the two: a float is not rounded to meet a whole number.
    pub(crate) fn compare_float(&self, other: f64) -> Option<Ordering> {
        if other.is_nan() {
            return None;
        }
        if other.is_infinite() {
            return Some(if other > 0.0 { Ordering::Less } else { Ordering::Greater });
        }
        // Rust writes all digits of a float's whole part.
        let whole: Self = format!("{:.0}", other.trunc()).parse().ok()?;
        let fraction = other.fract().partial_cmp(&0.0)?.reverse();
        Some(self.cmp(&whole).then(fraction))
    }
}

impl PartialOrd for Integer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Integer {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Small(one), Self::Small(two)) => one.cmp(two),
            (Self::Large(one), Self::Large(two)) => compare_digits(one, two),
            // What does not fit lies beyond all that does.
            (Self::Large(one), Self::Small(_)) => side(one),
            (Self::Small(_), Self::Large(two)) => side(two).reverse(),
        }
    }
}

fn side(digits: &str) -> Ordering {
    if digits.starts_with('-') { Ordering::Less } else { Ordering::Greater }
}

fn compare_digits(one: &str, two: &str) -> Ordering {
    let magnitude = |one: &str, two: &str| one.len().cmp(&two.len()).then_with(|| one.cmp(two));
    match (one.strip_prefix('-'), two.strip_prefix('-')) {
        (Some(one), Some(two)) => magnitude(two, one),
        (None, None) => magnitude(one, two),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(text: &str) -> Integer {
        text.parse().unwrap()
    }

    #[test]
    fn numbers_of_any_length_are_ordered() {
        let sorted = [
            "-100000000000000000000",
            "-99999999999999999999",
            "-9223372036854775808",
            "-1",
            "0",
            "7",
            "9223372036854775807",
            "9223372036854775808",
            "100000000000000000000",
        ];
        for pair in sorted.windows(2) {
            assert!(integer(pair[0]) < integer(pair[1]), "{pair:?}");
        }
        assert_eq!(integer("+0009"), Integer::Small(9));
        assert_eq!(integer("-000"), Integer::Small(0));
        assert!("".parse::<Integer>().is_err() && "1_0".parse::<Integer>().is_err());
    }

    #[test]
    fn a_float_is_met_exactly_or_not_at_all() {
        let large = integer("9007199254740993"); // 2^53 + 1, which no float is
        assert_eq!(large.compare_float(9_007_199_254_740_992.0), Some(Ordering::Greater));
        assert_eq!(integer("100000000000000000000").compare_float(1e20), Some(Ordering::Equal));
        assert_eq!(integer("3").compare_float(3.5), Some(Ordering::Less));
        assert_eq!(integer("-3").compare_float(-3.5), Some(Ordering::Greater));
        assert_eq!(integer("3").compare_float(f64::NAN), None);
        assert_eq!(integer("3").compare_float(f64::INFINITY), Some(Ordering::Less));
    }
}
