use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use proptest::prelude::*;

use super::*;

const SECRET: &str = "s3cr&t ?ü/~~ß>?";

fn found(text: &str) -> Option<String> {
    let patterns = Patterns::new([SECRET]);
    let marks = patterns.find(text.as_bytes());
    let start = usize::try_from(marks.iter().map(|mark| mark.start).min()?).unwrap();
    let end = usize::try_from(marks.iter().map(|mark| mark.end).max()?).unwrap();
    Some(format!("{}|{}", &text[..start], &text[end..]))
}

/// What a stream of these pieces becomes.
fn streamed<'a>(patterns: &Patterns, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut redactor, mut out) = (Redactor::default(), Vec::new());
    pieces.into_iter().for_each(|piece| redactor.push(patterns, piece, &mut out));
    redactor.finish(patterns, &mut out);
    assert_eq!(redactor.held(), 0);
    out
}

#[test]
fn base64_is_seen_through_wherever_it_begins() {
    for before in 0..7 {
        for after in 0..4 {
            let bytes = format!("{}{SECRET}{}", "\0".repeat(before), "\0".repeat(after));
            for text in [STANDARD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
                let left = found(&text).unwrap_or_else(|| panic!("{text}"));
                // What is left are the letters of the zeros, and the filling.
                assert!(left.chars().all(|one| matches!(one, 'A' | '=' | '|')), "{text}: {left}");
            }
        }
    }
}

#[test]
fn lines_in_base64_and_gaps_in_dumps_do_not_hide_it() {
    let text = STANDARD.encode(format!("xxx{SECRET}"));
    let lines: Vec<&str> =
        (0..text.len()).step_by(5).map(|at| &text[at..text.len().min(at + 5)]).collect();
    assert!(found(&lines.join("\n")).is_some() && found(&lines.join("\r\n")).is_some());
    let bytes: Vec<String> = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    for gap in ["", " ", ":", "\\x", ", 0x", "\n"] {
        assert_eq!(found(&bytes.join(gap)).as_deref(), Some("|"), "{gap:?}");
        let large = bytes.join(gap).to_uppercase().replace('X', "x");
        assert_eq!(found(&large).as_deref(), Some("|"), "{large}");
    }
}

#[test]
fn escapes_are_seen_through() {
    let percent = |letter: char| {
        letter.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect::<String>()
    };
    let all: String = SECRET.chars().map(percent).collect();
    let some: String = SECRET
        .chars()
        .map(|one| match one {
            ' ' => "+".to_owned(),
            one if one.is_ascii_alphanumeric() => one.to_string(),
            one => percent(one).to_lowercase(),
        })
        .collect();
    let json = SECRET.replace('ü', "\\u00fc").replace('ß', "\\u00DF").replace('/', "\\/");
    let python = SECRET.replace('ü', "\\xc3\\xbc").replace('ß', "\\xc3\\x9f");
    let html = SECRET.replace('&', "&amp;").replace('>', "&gt;");
    for text in [SECRET.to_owned(), all, some, json, python, html] {
        assert_eq!(found(&format!("a{text}b")).as_deref(), Some("a|b"), "{text}");
    }
}

#[test]
fn what_escapes_the_signs_of_escapes_is_seen_through() {
    for secret in
        ["100%sure", "back\\slash", "%25%25%", "\\\\\\\\\\\\", "\\u0041%41", "a\nb\nc\n\"d\""]
    {
        let patterns = Patterns::new([secret]);
        let url: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let json = serde_json::to_string(secret).unwrap();
        for text in [secret, &url, &json, &url.to_lowercase()] {
            let hidden = patterns.hide(text);
            assert!(hidden.contains("[secret]"), "{secret:?} in {text:?}: {hidden:?}");
            assert!(hidden.trim_matches('"') == "[secret]", "{secret:?} in {text:?}: {hidden:?}");
        }
    }
}

#[test]
fn many_signs_of_escapes_take_no_longer() {
    let patterns = Patterns::new(["\\".repeat(50).as_str(), &"a".repeat(300)]);
    let text = "\\".repeat(2000) + &"a".repeat(2000);
    assert!(!patterns.find(text.as_bytes()).is_empty());
}

#[test]
fn what_is_like_it_is_left_alone() {
    for text in ["", "s3cr&t ?u/~~ss>?", "S3CR&T ?ü/~~ß>?", "czNjcg==", "7333", "s3cr%2"] {
        assert_eq!(found(text), None, "{text}");
    }
}

#[test]
fn a_piece_at_a_cut_is_hidden_and_a_small_one_is_not() {
    let patterns = Patterns::new(["correct-horse"]);
    let cut = |before, after| patterns.hide_at_cut(before, after);
    let told = |before: &str, after: &str| (before.to_owned(), after.to_owned());
    assert_eq!(
        cut("it is correct-h", "t-horse, really"),
        told("it is [secret]", "[secret], really")
    );
    assert_eq!(cut("it is cor", "rse, really"), told("it is cor", "rse, really"));
    assert_eq!(
        cut("it is Y29ycmVjdC1", "C1ob3JzZQ==, really"),
        told("it is [secret]", "[secret]==, really")
    );
    assert_eq!(cut("636f72726563", "2d686f727365"), told("[secret]", "[secret]"));
}

#[test]
fn a_mask_is_as_long_as_what_it_hides() {
    let patterns = Patterns::new(["correct-horse", "four", "hunter22", "hunter22-long"]);
    for (text, shown) in [
        ("it is correct-horse!", "it is [secret]*****!"),
        ("four of them", "**** of them"),
        ("correct-horsecorrect-horse", "[secret]*****[secret]*****"),
        ("correct-horscorrect-horse", "correct-hors[secret]*****"),
        ("<hunter22-long>", "<[secret]*****>"),
        ("<hunter22-lone>", "<[secret]-lone>"),
    ] {
        let whole = streamed(&patterns, [text.as_bytes()]);
        assert_eq!(String::from_utf8_lossy(&whole), shown);
        let single = streamed(&patterns, text.as_bytes().chunks(1));
        assert_eq!(String::from_utf8_lossy(&single), shown, "byte by byte");
    }
    assert_eq!(streamed(&patterns, [&b"cut: correct-ho"[..]]), b"cut: [secret]**");
}

#[test]
fn what_has_hardly_begun_is_shown_after_a_while_and_the_rest_still_hidden() {
    let patterns = Patterns::new(["password-1234"]);
    let (mut redactor, mut out) = (Redactor::default(), Vec::new());
    redactor.push(&patterns, b"a pa", &mut out);
    assert_eq!((out.as_slice(), redactor.holds_little(&patterns)), (&b"a "[..], true));
    redactor.release(&patterns, &mut out);
    assert_eq!((out.as_slice(), redactor.held()), (&b"a pa"[..], 0));
    redactor.push(&patterns, b"ssword-12", &mut out);
    assert!(!redactor.holds_little(&patterns), "too much of it");
    redactor.release(&patterns, &mut out);
    assert_eq!(out, b"a pa");
    redactor.push(&patterns, b"34.", &mut out);
    assert_eq!(out, b"a pa[secret]***.");
}

#[test]
fn values_that_are_added_later_are_seen_by_streams_that_have_begun() {
    let mut patterns = Patterns::new(["old-value"]);
    let (mut redactor, mut out) = (Redactor::default(), Vec::new());
    redactor.push(&patterns, b"old-val", &mut out);
    assert_eq!(patterns.add("new-value"), Some(1));
    assert_eq!((patterns.add("old-value"), patterns.add("abc")), (Some(0), None));
    redactor.push(&patterns, b"ue new-va", &mut out);
    redactor.push(&patterns, b"lue\n", &mut out);
    assert_eq!(out, b"[secret]* [secret]*\n");
}

#[test]
fn what_is_held_back_stays_bounded() {
    let patterns = Patterns::new(["abcdefgh"]);
    let (mut redactor, mut out) = (Redactor::default(), Vec::new());
    let hex: Vec<u8> = "61 62 63 64".bytes().chain([b' '; 1000]).collect();
    for _ in 0..100 {
        redactor.push(&patterns, &hex, &mut out);
        assert!(redactor.held() < 64, "{}", redactor.held());
    }
}

/// Ways to write a secret down.
fn encoded(secret: &str, way: usize, before: &[u8], after: &[u8]) -> Vec<u8> {
    let around = [before, secret.as_bytes(), after].concat();
    match way {
        0 => secret.as_bytes().to_vec(),
        1 => STANDARD.encode(&around).into_bytes(),
        2 => URL_SAFE.encode(&around).into_bytes(),
        3 => STANDARD_NO_PAD.encode(&around).into_bytes(),
        4 => around.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes(),
        5 => around.iter().map(|byte| format!("{byte:02X}")).collect::<String>().into_bytes(),
        6 => secret.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>().into_bytes(),
        7 => secret
            .bytes()
            .map(|byte| match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    char::from(byte).to_string()
                }
                _ => format!("%{byte:02x}"),
            })
            .collect::<String>()
            .into_bytes(),
        8 => serde_json::to_vec(secret).unwrap(),
        _ => around.iter().map(|byte| format!("0x{byte:02x}, ")).collect::<String>().into_bytes(),
    }
}

/// Cut at these places.
fn pieces<'a>(stream: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    places.extend([0, stream.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_spelling_of_a_secret_gets_through_however_it_is_cut(
        secret in "[ -~]{8,40}|[a-zA-Z0-9_-]{8,64}|\\PC{8,20}",
        way in 0usize..10,
        around in prop::collection::vec(any::<u8>(), 0..6),
        noise in "[a-zA-Z0-9+/= \n%\\\\]{0,60}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let patterns = Patterns::new([secret.as_str()]);
        let (before, after) = around.split_at(around.len() / 2);
        let spelled = encoded(&secret, way, before, after);
        let stream = [b"<".as_slice(), &spelled, b">", noise.as_bytes()].concat();
        let out = streamed(&patterns, pieces(&stream, &cuts));
        prop_assert_eq!(out.len(), stream.len(), "nothing moves");
        let shown = String::from_utf8_lossy(&out[..spelled.len() + 2]).into_owned();
        prop_assert!(shown.contains("[secret]"), "{:?} {} {:?}", secret, way, shown);
        prop_assert!(!out.windows(secret.len()).any(|part| part == secret.as_bytes()));
        // Whatever the cuts, what is hidden is the same, but for a letter before base64 that was given already.
        let whole = streamed(&patterns, [stream.as_slice()]);
        let differ = out.iter().zip(&whole).filter(|(one, other)| one != other).count();
        prop_assert!(differ <= 10, "{:?} {:?}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&whole));
    }

    #[test]
    fn streams_without_a_secret_pass_unchanged_however_they_are_cut(
        secret in "[a-zA-Z0-9]{12,40}",
        stream in prop::collection::vec(any::<u8>(), 0..400),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let patterns = Patterns::new([secret.as_str()]);
        let out = streamed(&patterns, pieces(&stream, &cuts));
        prop_assert_eq!(out, stream);
    }
}

/// A program that does not have a value must see no difference between a guess at its beginning and other text.
#[test]
fn pieces_of_what_is_outside_are_treated_as_any_text() {
    let mut patterns = Patterns::default();
    patterns.add_outside("sk-real-value-0123456789");
    assert_eq!(patterns.tail(), 24 * 6, "as \\u0073");
    for (right, wrong) in
        [("s", "x"), ("sk-real", "sk-fake"), ("sk-real-value-012345678", "sk-real-value-01234567x")]
    {
        let given = |text: &str| {
            let (mut redactor, mut out) = (Redactor::default(), Vec::new());
            redactor.push(&patterns, text.as_bytes(), &mut out);
            let first = out.len();
            let little = redactor.holds_little(&patterns);
            redactor.release(&patterns, &mut out);
            let released = out.len();
            redactor.finish(&patterns, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
            (first, little, released)
        };
        for text in ["", &"-".repeat(300)] {
            assert_eq!(given(&format!("{text}{right}")), given(&format!("{text}{wrong}")));
        }
        assert_eq!(patterns.mask(right.as_bytes()), right.as_bytes());
        assert!(patterns.find_before_cut(right.as_bytes()).is_empty());
        assert_eq!(patterns.hide_at_cut(right, &format!("k{right}")).1, format!("k{right}"));
    }
    assert!(patterns.find_after_cut(b"eal-value-0123456789").is_empty());
    // Whole it is hidden, in every spelling and however it comes.
    let spelled = "[sk-real-value-0123456789] 736b2d7265616c2d76616c75652d30313233343536373839 \\u0073k-real-value-0123456789";
    for step in [1, 7, 500] {
        let hidden = streamed(&patterns, spelled.as_bytes().chunks(step));
        let hidden = String::from_utf8(hidden).unwrap();
        assert_eq!(hidden.matches("[secret]").count(), 3, "{hidden}");
        assert!(!hidden.contains("real") && hidden.len() == spelled.len(), "{hidden}");
    }
    // One that a program has as well is its own.
    patterns.add("sk-real-value-0123456789");
    assert_eq!(patterns.mask(b"sk-real"), b"*******");
}

#[test]
fn other_values_half_way_leave_nothing_of_the_first() {
    let (mut old, mut new) = (Patterns::default(), Patterns::default());
    old.add_outside("first-value");
    new.add_outside("other-value");
    new.add_outside("first-value");
    let (mut redactor, mut out) = (Redactor::default(), Vec::new());
    redactor.push(&old, b"a first-value first-", &mut out);
    redactor.renew(&new);
    redactor.push(&new, b"value other-value.", &mut out);
    redactor.finish(&new, &mut out);
    assert_eq!(out, b"a [secret]*** [secret]*** [secret]***.");
}
