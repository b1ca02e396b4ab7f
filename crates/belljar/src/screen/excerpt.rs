//! Places and pieces of hostile text, made fit to be shown.

/// Characters of an excerpt.
const MAX_EXCERPT: usize = 120;
/// Characters of an excerpt before the place it is about, when the line is too long for all.
const BEFORE: usize = 30;
/// Characters of a name.
const MAX_NAME: usize = 100;
/// Characters of a message.
const MAX_MESSAGE: usize = 500;

/// Line and column of a byte, both from 1; the column in characters.
pub(super) fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.bytes().filter(|one| *one == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}

/// The line around a byte, cut to a bound, harmless to a terminal.
pub(super) fn excerpt(text: &str, at: usize) -> String {
    let at = if text.is_char_boundary(at) { at.min(text.len()) } else { text.len() };
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
    let line = &text[start..end];
    let column = text[start..at].chars().count();
    let skipped =
        if line.chars().nth(MAX_EXCERPT).is_some() { column.saturating_sub(BEFORE) } else { 0 };
    let part = line.chars().skip(skipped);
    cut(part, MAX_EXCERPT).trim().to_owned()
}

/// A name from the text, likewise.
pub(super) fn name(text: &str) -> String {
    cut(text.chars(), MAX_NAME)
}

/// A line that another program said, likewise.
pub(super) fn message(text: &str) -> String {
    cut(text.chars(), MAX_MESSAGE)
}

fn cut(mut characters: impl Iterator<Item = char>, most: usize) -> String {
    let kept: String = characters.by_ref().take(most).map(shown).collect();
    if characters.next().is_some() { kept + "…" } else { kept }
}

fn shown(one: char) -> String {
    match one {
        '\t' => " ".to_owned(),
        _ if one.is_control() || is_unseen(one) => format!("\\u{{{:x}}}", u32::from(one)),
        _ => one.to_string(),
    }
}

/// Characters that have no shape of their own but turn text round, join it or break lines: with them what
/// is read and what is run can differ (CVE-2021-42574).
fn is_unseen(one: char) -> bool {
    matches!(one,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_from_one_in_characters() {
        let text = "é\nüx = 1\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, text.find('x').unwrap()), (2, 2));
        assert_eq!(position(text, text.len()), (3, 1));
    }

    #[test]
    fn an_excerpt_is_one_bounded_line_that_no_terminal_obeys() {
        let text = "a\n\tx\u{1b}]0;owned\u{7}\u{202e}\r\u{9b}\nb";
        assert_eq!(excerpt(text, 3), "x\\u{1b}]0;owned\\u{7}\\u{202e}\\u{d}\\u{9b}");
        let long = format!("{}os.system(){}", "x".repeat(1000), "y".repeat(1000));
        let shown = excerpt(&long, 1000);
        assert!(shown.contains("os.system()") && shown.chars().count() <= MAX_EXCERPT + 1);
    }
}
