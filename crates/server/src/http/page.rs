//! Lists in parts: `?limit=&cursor=`. A cursor is the place behind the last that was told, and means nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::problem::Problem;

/// Of one answer, unless `limit` says fewer.
pub(crate) const USUAL: usize = 100;
pub(crate) const MOST: usize = 1000;
/// Longer than any key of ours in base64.
const MOST_CURSOR: usize = 8192;

/// A part of a list, and where the next one begins.
#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next_cursor: Option<String>,
}

/// How much is asked for, and from where on.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) limit: usize,
    pub(crate) after: Option<String>,
}

impl Part {
    pub(crate) fn new(limit: Option<u64>, cursor: Option<&str>) -> Result<Self, Problem> {
        let limit = limit.map_or(Ok(USUAL), usize::try_from).unwrap_or(usize::MAX);
        if !(1..=MOST).contains(&limit) {
            let reason = format!("must be between 1 and {MOST}: ask on with cursor");
            return Err(Problem::field("limit", &reason));
        }
        let after = cursor.map(read).transpose()?;
        Ok(Self { limit, after })
    }

    /// The part of a list that is ordered by its keys.
    pub(crate) fn of<T>(&self, mut all: Vec<T>, key: impl Fn(&T) -> String) -> Page<T> {
        if let Some(after) = &self.after {
            all.retain(|one| key(one) > *after);
        }
        let more = all.len() > self.limit;
        all.truncate(self.limit);
        let next_cursor = all.last().filter(|_| more).map(|last| write(&key(last)));
        Page { items: all, next_cursor }
    }
}

pub(crate) fn write(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(key)
}

fn read(cursor: &str) -> Result<String, Problem> {
    let bytes =
        (cursor.len() <= MOST_CURSOR).then(|| URL_SAFE_NO_PAD.decode(cursor).ok()).flatten();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| Problem::field("cursor", "is none of ours: begin without one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_told_once_in_order() {
        let all: Vec<String> = (0..25).map(|number| format!("{number:02}")).collect();
        let (mut told, mut cursor) = (Vec::new(), None::<String>);
        for _ in 0..4 {
            let part = Part::new(Some(10), cursor.as_deref()).unwrap();
            let page = part.of(all.clone(), Clone::clone);
            told.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((told, cursor), (all, None));
    }

    #[test]
    fn limits_and_cursors_that_make_no_sense_are_refused() {
        for limit in [0, 1001, u64::MAX] {
            assert_eq!(Part::new(Some(limit), None).unwrap_err().field.as_deref(), Some("limit"));
        }
        for cursor in ["!", "/w", &"A".repeat(9000)] {
            assert_eq!(Part::new(None, Some(cursor)).unwrap_err().field.as_deref(), Some("cursor"));
        }
    }
}
