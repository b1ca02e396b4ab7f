//! What an agent is asked and what it answers, as bytes: names are bytes and contents are large, so neither
//! is dressed up as text.
//!
//! A frame is a length, the id of the question, and one [`Request`] or [`Answer`]. The engine believes nothing
//! of what it reads: every length is held against what is left of the frame, and a frame against
//! [`MAX_FRAME_BYTES`].

/// Contents in one message.
pub const MAX_DATA_BYTES: usize = 256 << 10;
/// One frame, with whatever stands around its contents.
pub const MAX_FRAME_BYTES: usize = MAX_DATA_BYTES + (64 << 10);
/// The kernel's PATH_MAX, without the zero at its end.
pub const MAX_PATH_BYTES: usize = 4095;
/// Length and id.
pub const HEAD_BYTES: usize = 12;

/// A file's name, a path, or contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Without it `path` is resolved as for a program inside, from the root, with all its links. With it, no
    /// link below this directory is followed, wherever in the path it stands, and `..` is refused.
    pub base: Option<Bytes>,
    pub path: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub kind: Kind,
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    pub modified: Time,
    pub device: u64,
    pub inode: u64,
}

/// Since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    pub seconds: i64,
    pub nanos: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: Bytes,
    pub meta: Meta,
    /// Of a symbolic link.
    pub target: Option<Bytes>,
}

/// What a file is opened for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    Read,
    /// Changed in place.
    Patch {
        create: bool,
        truncate: bool,
        append: bool,
        mode: u32,
    },
    /// Made anew beside it, and put in its place when it is finished. Without a mode it has that of the file
    /// that it replaces.
    Put {
        replace: bool,
        mode: Option<u32>,
    },
}

/// What becomes of what was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A file that was to be put is not.
    Drop,
    /// It is in its place; somebody else sees to it that it stays.
    Leave,
    /// It is in its place and on the disk, and so is its name.
    Sync,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Stat {
        place: Place,
        follow: bool,
    },
    /// One page of a directory, from where the last one ended.
    List {
        place: Place,
        cursor: u64,
        most: u32,
    },
    Open {
        place: Place,
        how: How,
    },
    Read {
        handle: u32,
        offset: u64,
        length: u32,
    },
    /// Without an offset: at the end.
    Write {
        handle: u32,
        offset: Option<u64>,
        data: Bytes,
    },
    Finish {
        handle: u32,
        how: Finish,
        modified: Option<Time>,
    },
    MakeDirectory {
        place: Place,
        mode: u32,
        parents: bool,
    },
    Move {
        from: Place,
        to: Place,
        replace: bool,
    },
    /// Some of a tree; as often as there is more.
    Remove {
        place: Place,
        recursive: bool,
    },
    Symlink {
        place: Place,
        target: Bytes,
    },
    ReadLink {
        place: Place,
    },
    /// A second name for a file.
    Link {
        from: Place,
        to: Place,
    },
    SetMode {
        place: Place,
        mode: u32,
    },
    SetTimes {
        place: Place,
        modified: Time,
    },
    /// Brings a file or directory to the disk; with `whole`, everything of its file system.
    Sync {
        place: Place,
        whole: bool,
    },
    Watch {
        place: Place,
        recursive: bool,
    },
    Events {
        handle: u32,
        wait_ms: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done {},
    Fault {
        fault: Fault,
        /// Below what was named, where that says more.
        at: Bytes,
    },
    Meta {
        meta: Meta,
        target: Option<Bytes>,
    },
    Page {
        entries: Vec<Listed>,
        next: Option<u64>,
    },
    Opened {
        handle: u32,
        meta: Meta,
    },
    Data {
        data: Bytes,
    },
    Removed {
        entries: u64,
        more: bool,
    },
    Events {
        events: Vec<Event>,
    },
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel's own error.
    Kernel { errno: u32 },
    /// A FIFO, a socket, a device, or a file of the kernel's that is no file.
    NotRegular {},
    /// Somebody else moved it meanwhile.
    Changed {},
    /// More files or watches are open than one agent has.
    TooMany {},
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub what: What,
    /// Relative to what is watched; empty for itself.
    pub path: Bytes,
    pub directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Created,
    /// Something was written, or it was closed after that.
    Written,
    Metadata,
    Removed,
    MovedFrom,
    MovedTo,
    /// Events were lost: look for yourself.
    Overflow,
    /// What was watched is gone, and nothing more comes.
    Gone,
}

/// A value that travels.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// `None` for bytes that are no such value.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

/// A frame of this question or answer.
fn frame(id: u64, body: &impl Field) -> Vec<u8> {
    let mut out = vec![0; 4];
    id.put(&mut out);
    body.put(&mut out);
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_le_bytes());
    out
}

/// How many bytes follow the length that a frame begins with; `None` for more than a frame has, or fewer.
pub fn rest_of_frame(length: [u8; 4]) -> Option<usize> {
    let rest = usize::try_from(u32::from_le_bytes(length)).ok()?;
    (HEAD_BYTES - 4 < rest && rest <= MAX_FRAME_BYTES).then_some(rest)
}

fn unframe<T: Field>(mut rest: &[u8]) -> Option<(u64, T)> {
    let id = u64::take(&mut rest)?;
    let body = T::take(&mut rest)?;
    rest.is_empty().then_some((id, body))
}

impl Request {
    pub fn frame(&self, id: u64) -> Vec<u8> {
        frame(id, self)
    }

    /// Of what follows a frame's length.
    pub fn read(rest: &[u8]) -> Option<(u64, Self)> {
        unframe(rest)
    }
}

impl Answer {
    pub fn frame(&self, id: u64) -> Vec<u8> {
        frame(id, self)
    }

    /// Of what follows a frame's length.
    pub fn read(rest: &[u8]) -> Option<(u64, Self)> {
        unframe(rest)
    }
}

macro_rules! number {
    ($($kind:ty)*) => { $(impl Field for $kind {
        fn put(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.to_le_bytes());
        }
        fn take(from: &mut &[u8]) -> Option<Self> {
            let (bytes, rest) = from.split_first_chunk()?;
            *from = rest;
            Some(Self::from_le_bytes(*bytes))
        }
    })* };
}
number!(u8 u32 u64 i64);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Field for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).put(out);
        out.extend_from_slice(&self.0);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let length = usize::try_from(u32::take(from)?).ok()?;
        let (bytes, rest) = from.split_at_checked(length)?;
        *from = rest;
        Some(Self(bytes.to_vec()))
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(out);
        self.iter().for_each(|one| one.put(out));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        // Grown as they come: a count alone makes nobody set memory aside.
        let mut all = Self::new();
        for _ in 0..u32::take(from)? {
            all.push(T::take(from)?);
        }
        Some(all)
    }
}

macro_rules! record {
    ($($name:ident { $($field:ident),* })*) => { $(impl Field for $name {
        fn put(&self, out: &mut Vec<u8>) {
            $(self.$field.put(out);)*
        }
        fn take(from: &mut &[u8]) -> Option<Self> {
            Some(Self { $($field: Field::take(from)?),* })
        }
    })* };
}
record! {
    Place { base, path }
    Time { seconds, nanos }
    Meta { kind, bytes, mode, modified, device, inode }
    Listed { name, meta, target }
    Event { what, path, directory }
}

macro_rules! choice {
    ($($name:ident { $($number:literal $variant:ident { $($field:ident),* })* })*) => { $(impl Field for $name {
        fn put(&self, out: &mut Vec<u8>) {
            match self {
                $(Self::$variant { $($field),* } => {
                    out.push($number);
                    $($field.put(out);)*
                })*
            }
        }
        fn take(from: &mut &[u8]) -> Option<Self> {
            match u8::take(from)? {
                $($number => Some(Self::$variant { $($field: Field::take(from)?),* }),)*
                _ => None,
            }
        }
    })* };
}
choice! {
    Kind { 1 File {} 2 Directory {} 3 Symlink {} 4 Other {} }
    How { 1 Read {} 2 Patch { create, truncate, append, mode } 3 Put { replace, mode } }
    Finish { 1 Drop {} 2 Leave {} 3 Sync {} }
    Fault { 1 Kernel { errno } 2 NotRegular {} 3 Changed {} 4 TooMany {} }
    What {
        1 Created {} 2 Written {} 3 Metadata {} 4 Removed {} 5 MovedFrom {} 6 MovedTo {} 7 Overflow {} 8 Gone {}
    }
    Request {
        1 Stat { place, follow }
        2 List { place, cursor, most }
        3 Open { place, how }
        4 Read { handle, offset, length }
        5 Write { handle, offset, data }
        6 Finish { handle, how, modified }
        7 MakeDirectory { place, mode, parents }
        8 Move { from, to, replace }
        9 Remove { place, recursive }
        10 Symlink { place, target }
        11 ReadLink { place }
        12 Link { from, to }
        13 SetMode { place, mode }
        14 SetTimes { place, modified }
        15 Sync { place, whole }
        16 Watch { place, recursive }
        17 Events { handle, wait_ms }
    }
    Answer {
        1 Done {}
        2 Fault { fault, at }
        3 Meta { meta, target }
        4 Page { entries, next }
        5 Opened { handle, meta }
        6 Data { data }
        7 Removed { entries, more }
        8 Events { events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write() -> Request {
        Request::Write { handle: 7, offset: Some(9), data: Bytes(b"\0\xff\n".to_vec()) }
    }

    #[test]
    fn what_is_framed_is_read_back() {
        let frame = write().frame(42);
        let length = <[u8; 4]>::try_from(&frame[..4]).unwrap();
        assert_eq!(rest_of_frame(length), Some(frame.len() - 4));
        assert_eq!(Request::read(&frame[4..]), Some((42, write())));
        let time = Time { seconds: -1, nanos: 5 };
        let meta = Meta {
            kind: Kind::Symlink,
            bytes: 1,
            mode: 0o777,
            modified: time,
            device: 2,
            inode: 3,
        };
        let listed = Listed { name: Bytes(vec![0xff]), meta, target: Some(Bytes(b"x".to_vec())) };
        let page = Answer::Page { entries: vec![listed.clone(), listed], next: Some(1) };
        assert_eq!(Answer::read(&page.frame(1)[4..]), Some((1, page)));
    }

    #[test]
    fn every_cut_and_every_surplus_byte_is_noticed() {
        let frame = write().frame(42);
        for end in 4..frame.len() {
            assert_eq!(Request::read(&frame[4..end]), None, "{end}");
        }
        let longer = [&frame[4..], &[0]].concat();
        assert_eq!(Request::read(&longer), None);
    }

    #[test]
    fn lengths_that_lie_are_refused_without_memory() {
        assert_eq!(rest_of_frame(u32::MAX.to_le_bytes()), None);
        assert_eq!(rest_of_frame(0u32.to_le_bytes()), None);
        let most = u32::try_from(MAX_FRAME_BYTES).unwrap();
        assert_eq!(rest_of_frame((most + 1).to_le_bytes()), None);
        // A page of four thousand million entries, and none of them there.
        let mut lie = 1u64.to_le_bytes().to_vec();
        lie.push(4);
        lie.extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Answer::read(&lie), None);
    }
}
