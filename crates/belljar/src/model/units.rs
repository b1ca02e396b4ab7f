//! Sizes and times as people write them: `512m`, `100k`, `30s`, `1500ms`.

use std::time::Duration;

/// Reads a size in bytes with an optional `k`, `m` or `g` (powers of 1024; `kb`, `KiB` also pass).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => {
            return Err(format!("unknown unit \"{unit}\": use k, m or g, as in 512m"));
        }
    };
    number.checked_mul(factor).ok_or_else(|| format!("{text} is more bytes than can be counted"))
}

/// Reads a time with `ms`, `s`, `m` or `h`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => {
            return Err(format!("unknown unit \"{unit}\": use ms, s or m, as in 30s"));
        }
    };
    let total = number.checked_mul(milliseconds);
    total.map(Duration::from_millis).ok_or_else(|| format!("{text} is longer than can be counted"))
}

/// Reads a plain number of things.
pub fn parse_count(text: &str) -> Result<u64, String> {
    match split(text)? {
        (number, "") => Ok(number),
        (_, unit) => Err(format!("\"{unit}\" does not belong after a number of things")),
    }
}

/// A size for people: whole when it is whole, else the bytes.
pub fn show_bytes(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} bytes")
}

/// A size as a flag takes it: `512m`.
pub fn flag_bytes(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// A time as a flag takes it: `30s`, `1500ms`.
pub fn flag_ms(milliseconds: u64) -> String {
    if milliseconds >= 1000 && milliseconds.is_multiple_of(1000) {
        return format!("{}s", milliseconds / 1000);
    }
    format!("{milliseconds}ms")
}

/// Reads a number of cores, such as `1`, `0.5` or `2`, into thousandths.
pub fn parse_cpus(text: &str) -> Result<u64, String> {
    let advice = || format!("\"{text}\" is not a number of cores: write 1, 0.5 or 2");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 3 {
        return Err(advice());
    }
    let whole: u64 = whole.parse().map_err(|_| advice())?;
    let part: u64 = format!("{part:0<3}").parse().map_err(|_| advice())?;
    whole.checked_mul(1000).and_then(|sum| sum.checked_add(part)).ok_or_else(advice)
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(format!("{text} is negative"));
    }
    let end = text.find(|one: char| !one.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err(format!("\"{text}\" does not start with a number"));
    }
    let number = number.parse().map_err(|_| format!("{number} is too large"))?;
    Ok((number, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_k_m_and_g() {
        assert_eq!(parse_bytes("512m"), Ok(512 << 20));
        assert_eq!(parse_bytes("100K"), Ok(100 << 10));
        assert_eq!(parse_bytes("7"), Ok(7));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        assert!(parse_bytes("-1").unwrap_err().contains("negative"));
        assert!(parse_bytes("10q").unwrap_err().contains("use k, m or g"));
        assert!(parse_bytes("lots").unwrap_err().contains("number"));
        assert!(parse_bytes("99999999999999999999").unwrap_err().contains("too large"));
        assert!(parse_bytes("99999999999999999g").unwrap_err().contains("more bytes"));
    }

    #[test]
    fn counts_are_plain_numbers() {
        assert_eq!(parse_count("64"), Ok(64));
        assert!(parse_count("-1").unwrap_err().contains("negative"));
        assert!(parse_count("64k").is_err());
    }

    #[test]
    fn sizes_are_shown_in_the_largest_whole_unit() {
        assert_eq!(show_bytes(64 << 20), "64 MiB");
        assert_eq!(show_bytes((64 << 20) + 1), "67108865 bytes");
        assert_eq!(show_bytes(3 << 30), "3 GiB");
    }

    #[test]
    fn times_take_ms_s_and_m() {
        assert_eq!(parse_duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("5"), Ok(Duration::from_secs(5)));
        assert!(parse_duration("5 parsecs").is_err());
    }

    #[test]
    fn cores_may_be_parts() {
        assert_eq!(parse_cpus("1"), Ok(1000));
        assert_eq!(parse_cpus("0.5"), Ok(500));
        assert_eq!(parse_cpus("1.25"), Ok(1250));
        for bad in ["", ".5", "-1", "1.2345", "two", "1e3", "NaN"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }
}
