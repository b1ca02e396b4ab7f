//! Values and texts as people read them, cut where they become long.

use super::value::Value;

/// Characters of a value in a message.
const MAX_SHOWN: usize = 300;

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
