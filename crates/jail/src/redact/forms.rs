//! The forms of one letter: itself, as in a URL, as in a string of JSON, C or Python, as in HTML.

/// No form is longer: a letter of four bytes, each as `\xf0`.
const MOST_BYTES: usize = 16;

/// One form of a letter.
#[derive(Clone, Copy)]
pub(super) struct Form {
    bytes: [u8; MOST_BYTES],
    pub(super) len: u8,
    /// Digits of an escape may be large or small.
    folds: bool,
}

impl Form {
    fn new(text: &str, folds: bool) -> Option<Self> {
        let mut bytes = [0; MOST_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { bytes, len: u8::try_from(text.len()).ok()?, folds })
    }

    /// Whether it has this byte there.
    pub(super) fn has(&self, at: u8, byte: u8) -> bool {
        let own = self.bytes[usize::from(at) % MOST_BYTES];
        at < self.len && (own == byte || self.folds && own.eq_ignore_ascii_case(&byte))
    }
}

/// Every form that is known.
pub(super) fn spelled(letter: char) -> Vec<Form> {
    let mut bytes = [0; 4];
    let each = |form: fn(u8) -> String, bytes: &[u8]| -> String {
        bytes.iter().map(|byte| form(*byte)).collect()
    };
    let own = letter.encode_utf8(&mut bytes).as_bytes().to_vec();
    let mut units = [0; 2];
    let unicode: String =
        letter.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    let mut forms = vec![
        (letter.to_string(), false),
        (each(|byte| format!("%{byte:02x}"), &own), true),
        (each(|byte| format!("\\x{byte:02x}"), &own), true),
        (unicode, true),
    ];
    let more: &[&str] = match letter {
        ' ' => &["+"],
        '\n' => &["\\n", "\r\n"],
        '\r' => &["\\r"],
        '\t' => &["\\t"],
        '"' => &["\\\"", "&quot;", "&#34;"],
        '\'' => &["\\'", "&#39;", "&#x27;", "&apos;"],
        '&' => &["&amp;"],
        '<' => &["&lt;"],
        '>' => &["&gt;"],
        '\\' => &["\\\\"],
        '/' => &["\\/"],
        _ => &[],
    };
    forms.extend(more.iter().map(|form| ((*form).to_owned(), false)));
    forms.into_iter().filter_map(|(form, folds)| Form::new(&form, folds)).collect()
}
