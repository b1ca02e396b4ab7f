//! Results as JUnit XML, which every CI reads.

use std::fmt::Write as _;

use super::{CaseResult, CaseVerdict, Grade};

/// One suite for each grade, with its name.
pub fn junit<'a>(grades: impl IntoIterator<Item = (&'a str, &'a Grade)>) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (name, grade) in grades {
        suite(name, grade, &mut xml);
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn suite(name: &str, grade: &Grade, xml: &mut String) {
    let all = &grade.test_results;
    let ours = all.iter().filter(|one| one.verdict == CaseVerdict::Infrastructure).count();
    let failed = all.iter().filter(|one| !one.passed).count() - ours;
    // Writing to a String cannot fail, here and below.
    writeln!(
        xml,
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" errors=\"{ours}\" time=\"{:.3}\">",
        escaped(name),
        all.len(),
        grade.elapsed_ms / 1000.0
    )
    .ok();
    all.iter().for_each(|one| case(name, one, xml));
    xml.push_str("  </testsuite>\n");
}

fn case(suite: &str, result: &CaseResult, xml: &mut String) {
    write!(
        xml,
        "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.6}\"",
        escaped(suite),
        escaped(&result.name),
        result.duration_ms / 1000.0
    )
    .ok();
    if result.passed {
        xml.push_str("/>\n");
        return;
    }
    // An error is ours, a failure is the candidate's: most readers show them apart.
    let tag = if result.verdict == CaseVerdict::Infrastructure { "error" } else { "failure" };
    let (kind, detail) = (result.verdict.word(), escaped(&result.detail));
    writeln!(xml, ">\n      <{tag} type=\"{kind}\" message=\"{detail}\">{detail}</{tag}>").ok();
    if !result.printed.is_empty() {
        writeln!(xml, "      <system-out>{}</system-out>", escaped(&result.printed)).ok();
    }
    xml.push_str("    </testcase>\n");
}

/// Text as XML can hold it: control characters have no place in it at all.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' => safe.push_str("&#10;"),
            '\t' => safe.push_str("&#9;"),
            _ if one.is_control() || matches!(one, '\u{fffe}' | '\u{ffff}') => {
                safe.push('\u{fffd}')
            }
            _ => safe.push(one),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_kind_stays_one_document() {
        assert_eq!(escaped("a<b>&\"\n\u{0}\u{1b}"), "a&lt;b&gt;&amp;&quot;&#10;\u{fffd}\u{fffd}");
    }
}
