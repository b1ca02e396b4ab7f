//! Comparing what came with what was expected, as Python's `==` does, and saying where they differ.
//!
//! Numbers are equal across their types, lists and tuples are not. Two differences: NaN meets NaN, since
//! nothing else could be expected of it, and a tolerance can be given.

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::case::Tolerance;
use super::value::Value;

/// Elements that are matched one against all others, where order and exactness are both let go.
const MAX_LOOSE: usize = 2000;
/// Characters of a value in a message.
const MAX_SHOWN: usize = 300;

/// How strictly two values are compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    pub tolerance: Option<Tolerance>,
    /// At the top only.
    pub unordered: bool,
}

/// `None` if they agree; else where they first differ, and how.
pub(crate) fn difference(expected: &Value, found: &Value, rules: Rules) -> Option<String> {
    let mut path = String::new();
    let what = if rules.unordered {
        differ_in_any_order(expected, found, rules.tolerance)?
    } else {
        differ(expected, found, rules.tolerance, &mut path)?
    };
    Some(if path.is_empty() { what } else { format!("at {path}: {what}") })
}

fn differ(
    expected: &Value,
    found: &Value,
    tolerance: Option<Tolerance>,
    path: &mut String,
) -> Option<String> {
    use Value::{Dict, FrozenSet, List, Set, Tuple};
    match (expected, found) {
        (List(one), List(two)) | (Tuple(one), Tuple(two)) => {
            for (index, (left, right)) in one.iter().zip(two).enumerate() {
                let before = path.len();
                // Writing to a String cannot fail.
                write!(path, "[{index}]").ok();
                if let Some(what) = differ(left, right, tolerance, path) {
                    return Some(what);
                }
                path.truncate(before);
            }
            (one.len() != two.len()).then(|| lengths(one.len(), two.len()))
        }
        (Set(one) | FrozenSet(one), Set(two) | FrozenSet(two)) => differ_as_sets(one, two),
        (Dict(one), Dict(two)) => differ_as_dicts(one, two, tolerance, path),
        _ if same_scalar(expected, found, tolerance) => None,
        _ if expected.type_name() == found.type_name() => {
            Some(format!("expected {}, got {}", show(expected), show(found)))
        }
        _ => Some(format!(
            "expected {} ({}), got {} ({})",
            show(expected),
            expected.type_name(),
            show(found),
            found.type_name()
        )),
    }
}

fn lengths(expected: usize, found: usize) -> String {
    format!("expected {expected} elements, got {found}")
}

fn same_scalar(one: &Value, two: &Value, tolerance: Option<Tolerance>) -> bool {
    if let (Some(tolerance), Some(left), Some(right)) = (tolerance, one.as_float(), two.as_float())
    {
        let either = [one, two].iter().any(|value| matches!(value, Value::Float(_)));
        if either && close(left, right, tolerance) {
            return true;
        }
    }
    if let (Value::Complex(a, b), Value::Complex(c, d), Some(tolerance)) = (one, two, tolerance) {
        return close(*a, *c, tolerance) && close(*b, *d, tolerance);
    }
    order(one, two) == Ordering::Equal
}

fn close(one: f64, two: f64, tolerance: Tolerance) -> bool {
    let apart = (one - two).abs();
    let equal = one.total_cmp(&two) == Ordering::Equal || apart == 0.0;
    equal || apart <= tolerance.abs || apart <= tolerance.rel * one.abs().max(two.abs())
}

fn differ_as_sets(expected: &[Value], found: &[Value]) -> Option<String> {
    let (one, two) = (sorted(expected), sorted(found));
    let (missing, extra) = only_in_one(&one, &two);
    match (missing, extra) {
        (None, None) => None,
        (Some(value), _) => Some(format!("{} is missing", show(value))),
        (None, Some(value)) => Some(format!("{} is there and was not expected", show(value))),
    }
}

/// The first that only the one and that only the other has.
fn only_in_one<'a>(one: &[&'a Value], two: &[&'a Value]) -> (Option<&'a Value>, Option<&'a Value>) {
    let (mut left, mut right) = (one.iter().copied().peekable(), two.iter().copied().peekable());
    let (mut missing, mut extra) = (None, None);
    loop {
        let side = match (left.peek(), right.peek()) {
            (Some(a), Some(b)) => order(a, b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return (missing, extra),
        };
        if side != Ordering::Greater {
            let value = left.next();
            missing = missing.or(value.filter(|_| side == Ordering::Less));
        }
        if side != Ordering::Less {
            let value = right.next();
            extra = extra.or(value.filter(|_| side == Ordering::Greater));
        }
    }
}

fn differ_as_dicts(
    expected: &[(Value, Value)],
    found: &[(Value, Value)],
    tolerance: Option<Tolerance>,
    path: &mut String,
) -> Option<String> {
    let (one, two) = (by_key(expected), by_key(found));
    let left: Vec<&Value> = one.iter().map(|pair| &pair.0).collect();
    let right: Vec<&Value> = two.iter().map(|pair| &pair.0).collect();
    match only_in_one(&left, &right) {
        (Some(key), _) => return Some(format!("the key {} is missing", show(key))),
        (None, Some(key)) => {
            return Some(format!("the key {} is there and was not expected", show(key)));
        }
        (None, None) => {}
    }
    for (left, right) in one.iter().zip(&two) {
        let before = path.len();
        write!(path, "[{}]", show(&left.0)).ok();
        if let Some(what) = differ(&left.1, &right.1, tolerance, path) {
            return Some(what);
        }
        path.truncate(before);
    }
    None
}

fn by_key(pairs: &[(Value, Value)]) -> Vec<&(Value, Value)> {
    let mut all: Vec<&(Value, Value)> = pairs.iter().collect();
    all.sort_by(|one, two| order(&one.0, &two.0));
    all
}

fn differ_in_any_order(
    expected: &Value,
    found: &Value,
    tolerance: Option<Tolerance>,
) -> Option<String> {
    let (one, two) = match (expected, found) {
        (Value::List(one), Value::List(two)) | (Value::Tuple(one), Value::Tuple(two)) => (one, two),
        _ => return differ(expected, found, tolerance, &mut String::new()),
    };
    if tolerance.is_none() {
        return differ_as_sets(one, two);
    }
    if one.len() != two.len() {
        return Some(lengths(one.len(), two.len()));
    }
    let (one, two) = (sorted(one), sorted(two));
    let same = |a: &Value, b: &Value| differ(a, b, tolerance, &mut String::new()).is_none();
    // Sorted numbers meet in pairs if they can meet at all.
    if one.iter().zip(&two).all(|(a, b)| same(a, b)) {
        return None;
    }
    if one.len() > MAX_LOOSE {
        return Some(format!(
            "do not agree in sorted order, and are more than {MAX_LOOSE}, too many to try every pair"
        ));
    }
    let mut left: Vec<&Value> = two;
    for value in one {
        match left.iter().position(|other| same(value, other)) {
            Some(at) => drop(left.swap_remove(at)),
            None => return Some(format!("{} is missing", show(value))),
        }
    }
    None
}

fn sorted(values: &[Value]) -> Vec<&Value> {
    let mut all: Vec<&Value> = values.iter().collect();
    all.sort_by(|one, two| order(one, two));
    all
}

/// A total order in which exactly those are equal that Python finds equal, and NaN equals itself.
fn order(one: &Value, two: &Value) -> Ordering {
    use Value::{
        Bool, Bytes, Complex, Dict, Float, FrozenSet, Int, List, None, Object, Set, Str, Tuple,
    };
    match (one, two) {
        (None, None) => Ordering::Equal,
        (Int(a), Int(b)) => a.cmp(b),
        (Bool(a), _) => order(&Value::from(i32::from(*a)), two),
        (_, Bool(b)) => order(one, &Value::from(i32::from(*b))),
        (Int(a), Float(b)) => a.compare_float(*b).unwrap_or(Ordering::Less),
        (Float(a), Int(b)) => b.compare_float(*a).map_or(Ordering::Greater, Ordering::reverse),
        (Float(a), Float(b)) => order_floats(*a, *b),
        (Complex(a, b), Complex(c, d)) => order_floats(*a, *c).then(order_floats(*b, *d)),
        (Complex(a, b), Int(_) | Float(_)) => order(&Float(*a), two).then(order_floats(*b, 0.0)),
        (Int(_) | Float(_), Complex(..)) => order(two, one).reverse(),
        (Str(a), Str(b)) => a.cmp(b),
        (Bytes(a), Bytes(b)) => a.cmp(b),
        (List(a), List(b)) | (Tuple(a), Tuple(b)) => order_all(a.iter(), b.iter()),
        (Set(a) | FrozenSet(a), Set(b) | FrozenSet(b)) => {
            order_all(sorted(a).into_iter(), sorted(b).into_iter())
        }
        (Dict(a), Dict(b)) => order_dicts(a, b),
        (Object(a), Object(b)) => a.cmp(b),
        _ => rank(one).cmp(&rank(two)),
    }
}

fn order_floats(one: f64, two: f64) -> Ordering {
    one.partial_cmp(&two).unwrap_or_else(|| one.is_nan().cmp(&two.is_nan()))
}

fn order_all<'a>(
    one: impl Iterator<Item = &'a Value>,
    two: impl Iterator<Item = &'a Value>,
) -> Ordering {
    let (mut one, mut two) = (one, two);
    loop {
        match (one.next(), two.next()) {
            (Some(a), Some(b)) => {
                let side = order(a, b);
                if side != Ordering::Equal {
                    return side;
                }
            }
            (a, b) => return a.is_some().cmp(&b.is_some()),
        }
    }
}

fn order_dicts(one: &[(Value, Value)], two: &[(Value, Value)]) -> Ordering {
    let (one, two) = (by_key(one), by_key(two));
    let one = one.iter().flat_map(|pair| [&pair.0, &pair.1]);
    order_all(one, two.iter().flat_map(|pair| [&pair.0, &pair.1]))
}

/// Kinds that are never equal to each other.
fn rank(value: &Value) -> u8 {
    match value {
        Value::None => 0,
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Complex(..) => 1,
        Value::Str(_) => 2,
        Value::Bytes(_) => 3,
        Value::List(_) => 4,
        Value::Tuple(_) => 5,
        Value::Set(_) | Value::FrozenSet(_) => 6,
        Value::Dict(_) => 7,
        Value::Object(_) => 8,
    }
}

/// A value as Python writes it, cut where it becomes long.
pub(crate) fn show(value: &Value) -> String {
    let mut text = String::new();
    write_value(value, &mut text);
    cut(&text, MAX_SHOWN)
}

/// The beginning of a text, with a mark if it is not all.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn write_value(value: &Value, to: &mut String) {
    // Long values are cut anyway: what lies behind is not written either.
    if to.len() > MAX_SHOWN * 4 {
        return;
    }
    match value {
        Value::None => to.push_str("None"),
        Value::Bool(true) => to.push_str("True"),
        Value::Bool(false) => to.push_str("False"),
        Value::Int(number) => to.push_str(&number.to_string()),
        Value::Float(number) => to.push_str(&float(*number)),
        Value::Complex(re, im) => to.push_str(&format!("({}+{}j)", float(*re), float(*im))),
        Value::Str(text) => write_text(text, to),
        Value::Bytes(bytes) => to.push_str(&format!("b\"{}\"", bytes.escape_ascii())),
        Value::List(all) => write_all(all, "[", "]", to),
        Value::Tuple(all) if all.len() == 1 => write_all(all, "(", ",)", to),
        Value::Tuple(all) => write_all(all, "(", ")", to),
        Value::Set(all) if all.is_empty() => to.push_str("set()"),
        Value::Set(all) => write_all(all, "{", "}", to),
        Value::FrozenSet(all) => write_all(all, "frozenset({", "})", to),
        Value::Dict(pairs) => {
            to.push('{');
            for (index, (key, value)) in pairs.iter().enumerate() {
                to.push_str(if index > 0 { ", " } else { "" });
                write_value(key, to);
                to.push_str(": ");
                write_value(value, to);
            }
            to.push('}');
        }
        Value::Object(number) => to.push_str(&format!("<object {number}>")),
    }
}

fn write_all(all: &[Value], open: &str, close: &str, to: &mut String) {
    to.push_str(open);
    for (index, value) in all.iter().enumerate() {
        to.push_str(if index > 0 { ", " } else { "" });
        write_value(value, to);
    }
    to.push_str(close);
}

fn write_text(text: &str, to: &mut String) {
    to.push('\'');
    for one in text.chars() {
        match one {
            '\n' => to.push_str("\\n"),
            '\'' => to.push_str("\\'"),
            '\\' => to.push_str("\\\\"),
            '\t' => to.push_str("\\t"),
            _ if one.is_control() => to.push_str(&format!("\\x{:02x}", u32::from(one))),
            _ => to.push(one),
        }
    }
    to.push('\'');
}

fn float(number: f64) -> String {
    if number.is_finite() { format!("{number:?}") } else { format!("{number}").to_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        Value::read(json.as_bytes()).unwrap()
    }

    fn differs(expected: &str, found: &str) -> Option<String> {
        difference(&value(expected), &value(found), Rules::default())
    }

    #[test]
    fn equality_is_pythons() {
        for (one, two) in [
            ("1", "1.0"),
            ("1", "true"),
            ("0.0", "-0.0"),
            ("null", "null"),
            ("{\"$float\":\"nan\"}", "{\"$float\":\"nan\"}"),
            ("{\"$complex\":[1.0,0.0]}", "1"),
            ("{\"$set\":[1,2,3]}", "{\"$frozenset\":[3,2,1]}"),
            ("{\"a\":1,\"b\":[2]}", "{\"b\":[2],\"a\":1}"),
            ("{\"$int\":\"100000000000000000000\"}", "1e20"),
            ("{\"$dict\":[[1,\"x\"]]}", "{\"$dict\":[[1.0,\"x\"]]}"),
            ("{\"$set\":[{\"$tuple\":[1,2]}]}", "{\"$set\":[{\"$tuple\":[1.0,2]}]}"),
        ] {
            assert_eq!(differs(one, two), None, "{one} {two}");
            assert_eq!(differs(two, one), None, "{two} {one}");
        }
        for (one, two) in [
            ("[1]", "{\"$tuple\":[1]}"),
            ("\"1\"", "1"),
            ("null", "0"),
            ("null", "false"),
            ("[]", "null"),
            ("\"a\"", "{\"$bytes\":\"YQ==\"}"),
            ("[1,2]", "[2,1]"),
            ("[1]", "[1,2]"),
            ("{\"a\":1}", "{\"a\":1,\"b\":2}"),
            ("{\"$set\":[1]}", "{\"$set\":[1,2]}"),
            ("9007199254740993", "9007199254740992.0"),
            ("{\"$float\":\"nan\"}", "0.0"),
        ] {
            assert!(differs(one, two).is_some() && differs(two, one).is_some(), "{one} {two}");
        }
    }

    #[test]
    fn a_difference_is_told_with_its_place() {
        let at = |one, two| differs(one, two).unwrap();
        assert_eq!(at("{\"a\":[1,2]}", "{\"a\":[1,3]}"), "at ['a'][1]: expected 2, got 3");
        assert_eq!(at("[1]", "{\"$tuple\":[1]}"), "expected [1] (list), got (1,) (tuple)");
        assert_eq!(at("{\"a\":1}", "{}"), "the key 'a' is missing");
        assert_eq!(at("[1,2]", "[1]"), "expected 2 elements, got 1");
        assert!(at("\"x\"", &format!("\"{}\"", "y".repeat(5000))).len() < 1000);
    }

    #[test]
    fn tolerance_and_order_can_be_let_go() {
        let loose =
            |abs, rel, unordered| Rules { tolerance: Some(Tolerance { abs, rel }), unordered };
        let agree = |one, two, rules| difference(&value(one), &value(two), rules).is_none();
        assert!(agree("[0.1,1000.0]", "[0.1000001,1000.1]", loose(1e-6, 1e-3, false)));
        assert!(!agree("0.1", "0.2", loose(1e-6, 1e-6, false)));
        assert!(agree("1.0", "1", loose(0.0, 0.0, false)));
        assert!(!agree("\"1.0\"", "\"1\"", loose(1.0, 1.0, false)), "text has no tolerance");
        assert!(!agree("1", "2", loose(5.0, 0.0, false)), "nor have whole numbers");
        assert!(agree("[1.0,2.0]", "[2.0000001,1.0]", loose(1e-3, 0.0, true)));
        assert!(!agree("[1.0,1.0]", "[1.0,2.0]", loose(1e-3, 0.0, true)));
        let any = Rules { tolerance: None, unordered: true };
        assert!(agree("[[1],[2],\"x\"]", "[\"x\",[2],[1]]", any));
        assert!(!agree("[1,1,2]", "[1,2,2]", any), "how often each comes counts");
        assert!(!agree("[[1,2]]", "[[2,1]]", any), "only the outermost order is let go");
    }
}
