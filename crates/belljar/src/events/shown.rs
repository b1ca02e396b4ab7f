//! Hostile bytes as text that harms no terminal, log, page or database.

/// A text of a program's, in quotes: what is no letter of UTF-8, commands a terminal or turns the
/// direction of writing is escaped.
pub(super) fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", escaped(bytes, true))
}

/// The same without quotes.
pub(super) fn plain(bytes: &[u8]) -> String {
    escaped(bytes, false)
}

/// A command line as the kernel keeps it: arguments that end in zero bytes. One that was cut says so.
pub(super) fn command(bytes: &[u8], most: usize) -> String {
    let whole = bytes.strip_suffix(b"\0");
    let words = whole.unwrap_or(bytes).split(|byte| *byte == 0);
    let mut text = words.map(plain).collect::<Vec<_>>().join(" ");
    if whole.is_none() && bytes.len() >= most {
        text.push('…');
    }
    text
}

fn escaped(bytes: &[u8], in_quotes: bool) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for one in chunk.valid().chars() {
            match one {
                '"' if in_quotes => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                one if is_harmful(one) => text.extend(one.escape_unicode()),
                one => text.push(one),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Control characters, marks of direction, what has no width, and line separators.
fn is_harmful(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(one, '\u{61c}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_bytes_are_shown_and_do_nothing() {
        assert_eq!(quoted(b"a\x1b[2J\"\\\xff\n"), r#""a\u{1b}[2J\"\\\xff\n""#);
        assert_eq!(plain("\u{202e}txt.exe é".as_bytes()), "\\u{202e}txt.exe é");
        assert_eq!(command(b"sh\0-c\0echo hi\0", 512), "sh -c echo hi");
        assert_eq!(command(b"aaaa", 4), "aaaa…");
        assert_eq!(command(b"", 4), "");
    }
}
