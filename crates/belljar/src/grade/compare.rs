//! Comparing what came with what was expected, as Python's `==` does, and saying where they differ.
//!
//! Numbers are equal across their types, lists and tuples are not. Two differences: NaN meets NaN, since
//! nothing else could be expected of it, and a tolerance can be given.
//!
//! One side is hostile: it may return what is made to be dear to compare. So sets and dicts are put in order once,
//! from the innermost on, and what a tolerance makes us try is counted.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt::Write as _;

use super::case::Tolerance;
use super::show::show;
use super::value::Value;

/// Elements that are matched one against all others, where order and exactness are both let go.
const MAX_LOOSE: usize = 2000;
/// Pairs that are tried for one answer: about a second.
const MAX_TRIED: u64 = 10_000_000;

/// How strictly two values are compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    pub tolerance: Option<Tolerance>,
    /// At the top only.
    pub unordered: bool,
}

/// `None` if they agree; else where they first differ, and how.
pub(crate) fn difference(expected: &Value, found: &Value, rules: Rules) -> Option<String> {
    let (expected, found) = (&in_order(expected), &in_order(found));
    let comparison = Comparison { tolerance: rules.tolerance, tried: Cell::new(0) };
    let mut path = String::new();
    let what = match (expected, found) {
        (Value::List(one), Value::List(two)) | (Value::Tuple(one), Value::Tuple(two))
            if rules.unordered =>
        {
            comparison.as_bags(&sorted(one), &sorted(two))?
        }
        _ => comparison.differ(expected, found, &mut path)?,
    };
    Some(if path.is_empty() { what } else { format!("at {path}: {what}") })
}

/// The same value with its sets and dicts in order, as a set and a dict hold what is equal: once.
fn in_order(value: &Value) -> Value {
    let all = |all: &[Value]| -> Vec<Value> { all.iter().map(in_order).collect() };
    let as_set = |inner: &[Value]| {
        let mut inner = all(inner);
        inner.sort_by(order);
        inner.dedup_by(|one, two| order(one, two) == Ordering::Equal);
        inner
    };
    match value {
        Value::List(inner) => Value::List(all(inner)),
        Value::Tuple(inner) => Value::Tuple(all(inner)),
        Value::Set(inner) => Value::Set(as_set(inner)),
        Value::FrozenSet(inner) => Value::FrozenSet(as_set(inner)),
        Value::Dict(pairs) => {
            let mut pairs: Vec<(Value, Value)> =
                pairs.iter().map(|(key, value)| (in_order(key), in_order(value))).collect();
            // The last of those with one key stays, as in Python: the order among them is kept.
            pairs.reverse();
            pairs.sort_by(|one, two| order(&one.0, &two.0));
            pairs.dedup_by(|one, two| order(&one.0, &two.0) == Ordering::Equal);
            Value::Dict(pairs)
        }
        Value::None
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Complex(..)
        | Value::Str(_)
        | Value::Bytes(_)
        | Value::Object(_) => value.clone(),
    }
}

/// One comparison. What it compares is in order.
struct Comparison {
    tolerance: Option<Tolerance>,
    tried: Cell<u64>,
}

impl Comparison {
    fn differ(&self, expected: &Value, found: &Value, path: &mut String) -> Option<String> {
        use Value::{Dict, FrozenSet, List, Set, Tuple};
        self.tried.set(self.tried.get() + 1);
        match (expected, found) {
            (List(one), List(two)) | (Tuple(one), Tuple(two)) => {
                for (index, (left, right)) in one.iter().zip(two).enumerate() {
                    let before = path.len();
                    // Writing to a String cannot fail.
                    write!(path, "[{index}]").ok();
                    if let Some(what) = self.differ(left, right, path) {
                        return Some(what);
                    }
                    path.truncate(before);
                }
                (one.len() != two.len()).then(|| lengths(one.len(), two.len()))
            }
            (Set(one) | FrozenSet(one), Set(two) | FrozenSet(two)) => {
                self.as_bags(&one.iter().collect::<Vec<_>>(), &two.iter().collect::<Vec<_>>())
            }
            (Dict(one), Dict(two)) => self.differ_as_dicts(one, two, path),
            _ if self.same_scalar(expected, found) => None,
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

    fn same_scalar(&self, one: &Value, two: &Value) -> bool {
        if let Some(tolerance) = self.tolerance {
            if let (Value::Complex(a, b), Value::Complex(c, d)) = (one, two) {
                return near(*a, *c, tolerance) && near(*b, *d, tolerance);
            }
            let either = [one, two].iter().any(|value| matches!(value, Value::Float(_)));
            // A whole number that no float holds is exactly what it is.
            if let (true, Some(left), Some(right)) = (either, one.as_float(), two.as_float())
                && left.is_finite()
                && right.is_finite()
            {
                return near(left, right, tolerance);
            }
        }
        order(one, two) == Ordering::Equal
    }

    fn differ_as_dicts(
        &self,
        expected: &[(Value, Value)],
        found: &[(Value, Value)],
        path: &mut String,
    ) -> Option<String> {
        match only_in_one(&keys(expected), &keys(found)) {
            (Some(key), _) => return Some(format!("the key {} is missing", show(key))),
            (None, Some(key)) => {
                return Some(format!("the key {} is there and was not expected", show(key)));
            }
            (None, None) => {}
        }
        for (left, right) in expected.iter().zip(found) {
            let before = path.len();
            write!(path, "[{}]", show(&left.0)).ok();
            if let Some(what) = self.differ(&left.1, &right.1, path) {
                return Some(what);
            }
            path.truncate(before);
        }
        None
    }

    /// Compares what has no order of its own; both are sorted.
    fn as_bags(&self, expected: &[&Value], found: &[&Value]) -> Option<String> {
        let (missing, extra) = only_in_one(expected, found);
        let exactly = match (missing, extra) {
            (None, None) => return None,
            (Some(value), _) => format!("{} is missing", show(value)),
            (None, Some(value)) => format!("{} is there and was not expected", show(value)),
        };
        if self.tolerance.is_none() {
            return Some(exactly);
        }
        if expected.len() != found.len() {
            return Some(lengths(expected.len(), found.len()));
        }
        // Sorted numbers meet in pairs if they can meet at all.
        if expected.iter().zip(found).all(|(one, two)| self.agree(one, two)) {
            return None;
        }
        if expected.len() > MAX_LOOSE {
            return Some(format!(
                "do not agree in sorted order, and are more than {MAX_LOOSE}, too many to try every pair"
            ));
        }
        self.without_partner(expected, found).map(|value| format!("{} is missing", show(value)))
    }

    fn agree(&self, one: &Value, two: &Value) -> bool {
        self.tried.get() <= MAX_TRIED && self.differ(one, two, &mut String::new()).is_none()
    }

    /// Gives everyone a partner with whom it agrees, each to one; the first for whom there is none is told. Whoever has
    /// one may have to take another, for the sake of those that come later: Kuhn's way.
    fn without_partner<'a>(&self, expected: &[&'a Value], found: &[&Value]) -> Option<&'a Value> {
        let partners: Vec<Vec<usize>> = expected
            .iter()
            .map(|one| (0..found.len()).filter(|at| self.agree(one, found[*at])).collect())
            .collect();
        let mut taken_by: Vec<Option<usize>> = vec![None; found.len()];
        for (first, value) in expected.iter().enumerate() {
            // A walk from the one without a partner to a free one, over those that would have to change.
            let mut came_from: Vec<Option<usize>> = vec![None; found.len()];
            let mut waiting = vec![first];
            let mut free = None;
            while let (None, Some(one)) = (free, waiting.pop()) {
                for at in partners[one].iter().copied() {
                    self.tried.set(self.tried.get() + 1);
                    if came_from[at].is_some() || self.tried.get() > MAX_TRIED {
                        continue;
                    }
                    came_from[at] = Some(one);
                    match taken_by[at] {
                        Some(other) => waiting.push(other),
                        None => free = free.or(Some(at)),
                    }
                }
            }
            let Some(mut at) = free else { return Some(value) };
            while let Some(one) = came_from[at] {
                taken_by[at] = Some(one);
                if one == first {
                    break;
                }
                let before =
                    (0..found.len()).find(|other| *other != at && taken_by[*other] == Some(one));
                let Some(before) = before else { break };
                taken_by[before] = None;
                at = before;
            }
        }
        None
    }
}

fn keys(pairs: &[(Value, Value)]) -> Vec<&Value> {
    pairs.iter().map(|pair| &pair.0).collect()
}

fn lengths(expected: usize, found: usize) -> String {
    format!("expected {expected} elements, got {found}")
}

/// Whether two numbers are as near as they have to be. To infinity nothing is near: a share of it is infinite too, and
/// so would be every distance.
pub(super) fn near(one: f64, two: f64, tolerance: Tolerance) -> bool {
    if !(one.is_finite() && two.is_finite()) {
        return order_floats(one, two) == Ordering::Equal;
    }
    let apart = (one - two).abs();
    apart <= tolerance.abs || apart <= tolerance.rel * one.abs().max(two.abs())
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

fn sorted(values: &[Value]) -> Vec<&Value> {
    let mut all: Vec<&Value> = values.iter().collect();
    all.sort_by(|one, two| order(one, two));
    all
}

/// A total order in which exactly those are equal that Python finds equal, and NaN equals itself; of values that are
/// themselves in order.
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
        (Set(a) | FrozenSet(a), Set(b) | FrozenSet(b)) => order_all(a.iter(), b.iter()),
        (Dict(a), Dict(b)) => {
            let (a, b) = (a.iter(), b.iter());
            order_all(a.flat_map(|pair| [&pair.0, &pair.1]), b.flat_map(|pair| [&pair.0, &pair.1]))
        }
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

    #[test]
    fn a_tolerance_holds_in_sets_and_between_any_pairs() {
        let loose = |unordered| {
            let tolerance = Some(Tolerance { abs: 0.1, rel: 0.0 });
            Rules { tolerance, unordered }
        };
        let agree = |one, two, rules| difference(&value(one), &value(two), rules).is_none();
        let (one, two) = ("{\"$set\":[0.3,1.0]}", "{\"$set\":[0.30000000000000004,1.0]}");
        assert!(agree(one, two, loose(false)) && differs(one, two).is_some());
        assert!(!agree(one, "{\"$set\":[0.5,1.0]}", loose(false)));
        // Whoever is asked first may have to leave its first choice to another.
        let (one, two) = ("[[1.0,1.0],[1.05,0.95]]", "[[1.08,0.92],[0.95,1.04]]");
        assert!(agree(one, two, loose(true)) && agree(two, one, loose(true)));
        let (one, two) = ("[[0.0,1],[0.1,0],[0.2,0]]", "[[0.05,0],[0.15,0],[0.0,1]]");
        assert!(agree(one, two, loose(true)));
        assert!(!agree("[[0.0,0],[0.3,0],[0.6,0]]", "[[0.05,0],[0.05,0],[0.6,0]]", loose(true)));
    }

    #[test]
    fn what_is_not_finite_is_near_itself_alone() {
        let tolerance = Tolerance { abs: 1.0, rel: 0.5 };
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        assert!(near(inf, inf, tolerance) && near(nan, -nan, tolerance));
        for (one, two) in
            [(1.0, inf), (inf, 1.0), (-inf, inf), (nan, 1.0), (nan, inf), (f64::MAX, inf)]
        {
            assert!(!near(one, two, tolerance), "{one} {two}");
        }
    }

    #[test]
    fn what_is_written_twice_in_a_set_or_dict_is_there_once() {
        assert_eq!(differs("{\"$set\":[1,true,2,2.0]}", "{\"$set\":[2,1]}"), None);
        assert_eq!(differs("{\"$dict\":[[1,\"a\"],[1.0,\"b\"]]}", "{\"$dict\":[[1,\"b\"]]}"), None);
    }

    #[test]
    fn comparing_is_bounded_whatever_is_compared() {
        let (mut a, mut b, mut c) = (Value::from(1), Value::from(2), Value::from(3));
        for _ in 0..17 {
            let set = |one: &Value, two: &Value| Value::FrozenSet(vec![one.clone(), two.clone()]);
            (a, b, c) = (set(&a, &b), set(&a, &c), set(&b, &c));
        }
        let (expected, found) = (Value::Set(vec![c]), Value::Set(vec![a, b]));
        let tolerance = Some(Tolerance { abs: 0.5, rel: 0.0 });
        let (told, done) = std::sync::mpsc::channel();
        // In a thread, so that a comparison without end is a failure and not a wait without end.
        std::thread::spawn(move || {
            for tolerance in [None, tolerance] {
                let rules = Rules { tolerance, unordered: false };
                told.send(difference(&expected, &found, rules).is_some()).ok();
            }
        });
        for _ in 0..2 {
            assert_eq!(done.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
        }
    }
}
