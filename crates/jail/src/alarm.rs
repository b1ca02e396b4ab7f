//! What makes an allowed call worth telling, however many were told before it: signs that the engine names and the keeper
//! looks for in what it has read. Evidence, as all of that is: nothing is decided by it.

use serde::{Deserialize, Serialize};

/// What allowed calls may show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alarm {
    pub calls: Vec<u32>,
    pub sign: Sign,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// These bytes, at this place of what is read.
    Bytes { at: usize, bytes: Vec<u8> },
    /// A path that begins so. If two things are read, the first is the directory that it starts from.
    Path(String),
}

impl Alarm {
    /// Whether this call shows it, by what was read of its arguments.
    pub(crate) fn rings(&self, call: u32, read: &[Option<Vec<u8>>]) -> bool {
        if !self.calls.contains(&call) {
            return false;
        }
        match (&self.sign, read) {
            (Sign::Bytes { at, bytes }, [Some(found)]) => {
                found.get(*at..).is_some_and(|rest| rest.starts_with(bytes))
            }
            (Sign::Path(beginning), [Some(path)]) => {
                tidied(b"", path).starts_with(beginning.as_bytes())
            }
            (Sign::Path(beginning), [directory, Some(path)]) => {
                let directory = directory.as_deref().unwrap_or_default();
                tidied(directory, path).starts_with(beginning.as_bytes())
            }
            _ => false,
        }
    }
}

/// The whole path without `.`, `..` and doubled strokes, as far as that can be said without looking: links are not followed.
fn tidied(directory: &[u8], path: &[u8]) -> Vec<u8> {
    let from = if path.starts_with(b"/") { b"" } else { directory };
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in from.split(is_stroke).chain(path.split(is_stroke)) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().flat_map(|part| [b"/".as_slice(), part].concat()).collect()
}

fn is_stroke(byte: &u8) -> bool {
    *byte == b'/'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Vec<Option<Vec<u8>>> {
        texts.iter().map(|text| Some(text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_path_is_known_however_it_is_written() {
        let alarm = Alarm { calls: vec![2], sign: Sign::Path("/proc/sys/".into()) };
        for texts in [
            &["/proc/sys/kernel/x"][..],
            &["//proc/./sys//kernel/x"],
            &["/tmp/../proc/sys/x"],
            &["/proc", "sys/x"],
            &["/proc/sys/kernel", "../x"],
            &["/tmp", "/proc/sys/x"],
        ] {
            assert!(alarm.rings(2, &read(texts)), "{texts:?}");
        }
        for texts in [&["/proc/system"][..], &["/tmp/proc/sys/x"], &["/tmp", "proc/sys/x"], &[]] {
            assert!(!alarm.rings(2, &read(texts)), "{texts:?}");
        }
        assert!(!alarm.rings(3, &read(&["/proc/sys/x"])), "another call");
        assert!(!alarm.rings(2, &[None]), "nothing could be read");
    }

    #[test]
    fn bytes_are_looked_for_in_their_place() {
        let alarm = Alarm { calls: vec![2], sign: Sign::Bytes { at: 4, bytes: vec![169, 254] } };
        assert!(alarm.rings(2, &[Some(vec![2, 0, 0, 80, 169, 254, 1, 2])]));
        for other in [vec![169, 254], vec![2, 0, 0, 80, 1, 169, 254, 2], Vec::new()] {
            assert!(!alarm.rings(2, &[Some(other)]));
        }
    }
}
