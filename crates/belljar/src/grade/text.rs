//! Comparing what a program wrote with what it should have written.

use super::case::Case;
use super::compare::near;
use super::show::cut;

/// Characters of a line in a message.
const MAX_SHOWN: usize = 120;

/// `None` if they agree; else the first line that does not.
pub(super) fn difference(expected: &[u8], found: &[u8], case: &Case) -> Option<String> {
    if case.exact {
        return (expected != found).then(|| at_byte(expected, found));
    }
    let (mut expected, mut found) = (lines(expected), lines(found));
    if case.unordered {
        expected.sort_unstable();
        found.sort_unstable();
    }
    for (index, (one, two)) in expected.iter().zip(&found).enumerate() {
        if !same_line(one, two, case) {
            return Some(format!(
                "line {} differs: expected \"{}\", got \"{}\"",
                index + 1,
                shown(one),
                shown(two)
            ));
        }
    }
    match (expected.get(found.len()), found.get(expected.len())) {
        (Some(line), _) => {
            let (all, got) = (expected.len(), found.len());
            let line = shown(line);
            Some(format!("expected {all} lines, got {got}: \"{line}\" and what follows is missing"))
        }
        (None, Some(line)) => {
            let (all, got) = (expected.len(), found.len());
            Some(format!("expected {all} lines, got {got}: \"{}\" is too much", shown(line)))
        }
        (None, None) => None,
    }
}

/// Lines without white space at their ends, and without empty lines at the end.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut all: Vec<&[u8]> =
        bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).collect();
    while all.last().is_some_and(|line| line.is_empty()) {
        all.pop();
    }
    all
}

fn same_line(one: &[u8], two: &[u8], case: &Case) -> bool {
    if one == two {
        return true;
    }
    let Some(tolerance) = case.tolerance else { return false };
    let words = |line: &'_ [u8]| -> Vec<Vec<u8>> {
        line.split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    let (one, two) = (words(one), words(two));
    one.len() == two.len()
        && one.iter().zip(&two).all(|(a, b)| {
            let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<f64>().ok();
            a == b || number(a).zip(number(b)).is_some_and(|(a, b)| near(a, b, tolerance))
        })
}

fn at_byte(expected: &[u8], found: &[u8]) -> String {
    let at = expected.iter().zip(found).take_while(|(one, two)| one == two).count();
    let around = |bytes: &[u8]| shown(&bytes[at.min(bytes.len())..(at + 40).min(bytes.len())]);
    format!(
        "byte {at} differs: expected \"{}\", got \"{}\" ({} bytes expected, {} found)",
        around(expected),
        around(found),
        expected.len(),
        found.len()
    )
}

fn shown(line: &[u8]) -> String {
    cut(&String::from_utf8_lossy(line).escape_debug().to_string(), MAX_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs(expected: &str, found: &str, case: &Case) -> Option<String> {
        difference(expected.as_bytes(), found.as_bytes(), case)
    }

    #[test]
    fn white_space_at_the_ends_is_passed_over_unless_it_counts() {
        let (plain, exact) = (Case::default(), Case { exact: true, ..Case::default() });
        assert_eq!(differs("1\n2\n", "1  \r\n2\n\n\n", &plain), None);
        assert!(differs("1\n2\n", "1\n\n2\n", &plain).is_some(), "an empty line inside counts");
        assert!(differs(" 1", "1", &plain).is_some(), "so does an indent");
        assert!(differs("1\n", "1", &exact).unwrap().contains("byte 1 differs"));
        assert_eq!(differs("1\n", "1\n", &exact), None);
    }

    #[test]
    fn the_first_line_that_differs_is_told() {
        let plain = Case::default();
        let why = differs("a\nb\nc\n", "a\nx\nc\n", &plain).unwrap();
        assert_eq!(why, "line 2 differs: expected \"b\", got \"x\"");
        assert!(
            differs("a\nb", "a", &plain).unwrap().contains("\"b\" and what follows is missing")
        );
        assert!(differs("a", "a\nb", &plain).unwrap().contains("too much"));
    }

    #[test]
    fn numbers_may_be_off_and_lines_in_any_order_if_that_was_said() {
        let tolerance = serde_json::from_str("0.001").unwrap();
        let loose = Case { tolerance: Some(tolerance), ..Case::default() };
        assert_eq!(differs("x 1.0 2", "x 1.0001 2.0", &loose), None);
        assert!(differs("x 1.0", "y 1.0", &loose).is_some());
        assert!(differs("1.0", "1.1", &loose).is_some());
        assert!(differs("1.0", "inf", &loose).is_some() && differs("inf", "1.0", &loose).is_some());
        assert_eq!(differs("inf nan", "Infinity NaN", &loose), None);
        let any = Case { unordered: true, ..Case::default() };
        assert_eq!(differs("a\nb\n", "b\na\n", &any), None);
        assert!(differs("a\na\n", "b\na\n", &any).is_some());
    }
}
