//! Just enough reading of Rust source for rules about words: what is code, what an enum's variants are called,
//! which functions exist. A full parser would be one more dependency for a handful of questions.

use std::collections::BTreeSet;

/// The source with comments and the insides of literals blanked out, line for line.
pub(super) fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = String::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let blank = blank_length(bytes, at);
        if blank == 0 {
            code.push(char::from(bytes[at]));
            at += 1;
        } else {
            for byte in &bytes[at..at + blank] {
                code.push(if *byte == b'\n' { '\n' } else { ' ' });
            }
            at += blank;
        }
    }
    code
}

/// The identifiers and keywords of code, with the line of each (from 1).
pub(super) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let in_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    code.lines().enumerate().flat_map(move |(line, text)| {
        text.split(move |letter| !in_word(letter))
            .filter(|word| !word.is_empty())
            .map(move |word| (line + 1, word))
    })
}

/// The names that tests may have: of functions, and first words in a macro call, because a catalogue of tests is
/// often written `escape!(name, …)`.
pub(super) fn test_names(code: &str) -> BTreeSet<&str> {
    let after = |mark: &'static str| {
        code.match_indices(mark).filter_map(move |(at, _)| {
            let rest = code[at + mark.len()..].trim_start();
            rest.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next()
        })
    };
    after("fn ").chain(after("!(")).chain(after("! {")).filter(|name| !name.is_empty()).collect()
}

/// The variants of `enum NAME`, or nothing if the source has no such enum.
pub(super) fn variants<'a>(code: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let mark = format!("enum {name} {{");
    let body = &code[code.find(&mark)? + mark.len()..];
    let (mut depth, mut found, mut word, mut taken) = (0_i32, Vec::new(), None, false);
    for (at, letter) in body.char_indices() {
        let starts_word = letter.is_ascii_alphabetic() && word.is_none();
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' if depth == 0 => {
                found.extend(word.take());
                return Some(found);
            }
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.extend(word.take());
                taken = false;
            }
            _ if depth == 0 && starts_word && !taken => {
                let length = body[at..]
                    .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
                    .unwrap_or(body.len() - at);
                word = Some(&body[at..at + length]);
                taken = true;
            }
            _ => {}
        }
    }
    None
}

/// `NoNewPrivileges` as `no_new_privileges`.
pub(super) fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// How many bytes from `at` are a comment or a literal; none if it is code.
fn blank_length(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        // Three bytes are a character; otherwise it is a lifetime. A character beyond ASCII takes up to four.
        [b'\'', _, b'\'', ..] => 3,
        [b'\'', first, ..] if !first.is_ascii() => {
            rest.iter().skip(1).position(|byte| *byte == b'\'').map_or(1, |end| end + 2)
        }
        [b'r', b'#' | b'"', ..] if !continues_word(bytes, at) => raw_string(rest),
        _ => 0,
    }
}

/// Whether the `r` at `at` is the end of a name rather than the beginning of a raw string (`br` and `cr` are one).
fn continues_word(bytes: &[u8], at: usize) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let before = at.checked_sub(1).map(|at| bytes[at]);
    let prefixed = matches!(before, Some(b'b' | b'c'))
        && !at.checked_sub(2).is_some_and(|at| is_word(&bytes[at]));
    before.is_some_and(|byte| is_word(&byte)) && !prefixed
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `r"…"`, `r#"…"#`, …; none for a raw identifier such as `r#gen`.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = 2 + hashes;
    rest[body..]
        .windows(end.len())
        .position(|window| window == end)
        .map_or(rest.len(), |at| body + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let source = "let a = \"one \\\" one\"; // two\n/* three /* three */ three */ let b = r#\"four \" four\"#;\n\
                      let c = '\"'; let d: &'static str = r#type; let e = 'é'; let f = b'\\''; five()";
        let code = code_only(source);
        for gone in ["one", "two", "three", "four", "\"", "é"] {
            assert!(!code.contains(gone), "{gone} in {code}");
        }
        for kept in ["let a", "let b", "let c", "'static str", "r#type", "let f", "five()"] {
            assert!(code.contains(kept), "{kept} not in {code}");
        }
        assert_eq!(code.lines().count(), source.lines().count());
    }

    #[test]
    fn variants_of_every_shape_are_found() {
        let source = "pub enum Other { X }\n#[repr(u8)]\npub enum Step {\n    /// Doc, with a comma.\n    Clone = 1,\n\
            #[serde(rename = \"x\")]\n    Mount { at: Vec<u8>, b: u8 },\n    Pivot(Option<u8>, u8),\n    Last\n}\n";
        let code = code_only(source);
        assert_eq!(variants(&code, "Step").unwrap(), ["Clone", "Mount", "Pivot", "Last"]);
        assert_eq!(variants(&code, "Layer"), None);
    }

    #[test]
    fn test_names_are_functions_and_catalogue_entries() {
        let names = test_names(
            "fn plain_one() {}\nescape!(host_file_is_absent, |h| {});\nbox_of! {\n  entry, x }",
        );
        for name in ["plain_one", "host_file_is_absent", "entry"] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn names_become_snake_case() {
        assert_eq!(snake_case("NoNewPrivileges"), "no_new_privileges");
        assert_eq!(snake_case("Seccomp"), "seccomp");
    }
}
