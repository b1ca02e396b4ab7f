//! Text from programs, made harmless for whoever looks at it: a terminal obeys control characters, and
//! characters that turn the direction of writing make code look like other code (CVE-2021-42574).

/// Whether a character does something else than being seen.
pub fn is_unseen(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Text with such characters written out; line ends and tabs stay.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '\n' | '\t' => shown.push(one),
            one if is_unseen(one) => shown.extend(one.escape_unicode()),
            one => shown.push(one),
        }
    }
    shown
}

/// The same in one line.
pub fn visible_line(text: &str) -> String {
    visible(text).replace(['\n', '\t'], " ")
}

/// At most so many characters, the last of them a sign that there were more.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept = text.chars().take(most.saturating_sub(1));
    kept.chain((most > 0).then_some('…')).collect()
}

/// JSON with such characters escaped, where JSON itself does not ask for it. They stand only in strings,
/// where this is another spelling of the same.
pub fn escaped_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for one in json.chars() {
        if is_unseen(one) && one != '\n' {
            let mut units = [0; 2];
            for unit in one.encode_utf16(&mut units) {
                text += &format!("\\u{unit:04x}");
            }
        } else {
            text.push(one);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;x\u{7}\0\u{7f}\u{9b}2J\u{202e}b\r\nc\u{2028}";

    #[test]
    fn nothing_unseen_is_left_but_line_ends() {
        let shown = visible(HOSTILE);
        assert!(shown.chars().all(|one| one == '\n' || !is_unseen(one)), "{shown:?}");
        assert!(shown.contains(r"\u{1b}]0;x") && shown.contains(r"\u{202e}b"), "{shown}");
        assert!(!visible_line(HOSTILE).contains('\n'));
    }

    #[test]
    fn escaped_json_is_the_same_value() {
        let json = serde_json::to_string(HOSTILE).unwrap();
        let escaped = escaped_json(&json);
        assert!(!escaped.chars().any(is_unseen), "{escaped:?}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), HOSTILE);
    }

    #[test]
    fn a_budget_of_characters_is_kept() {
        assert_eq!(shortened("ééé", 3), "ééé");
        assert_eq!(shortened("éééé", 3), "éé…");
        assert_eq!(shortened("é", 0), "");
    }
}
