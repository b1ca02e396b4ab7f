//! The beginning of a TLS connection: whose certificate is asked for.
//!
//! Only the ClientHello is read; nothing is decrypted here. Where TLS ends here it is read again, by [`crate::ended`].

/// The longest ClientHello that is waited for.
pub(crate) const MAX_HELLO: usize = 32 << 10;
const MAX_RECORD: usize = (16 << 10) + 256;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_HELLO: u16 = 0xfe0d;

/// What a ClientHello says of who is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub name: Option<String>,
    /// The name that counts is encrypted.
    pub hidden: bool,
}

/// How far the reading came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// More bytes are needed.
    Part,
    Whole(Hello),
    /// No ClientHello, or one that cannot be read for certain.
    Wrong,
}

/// Whether this may be the beginning of TLS: a handshake record of version 3.x.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE) && bytes.get(1).is_none_or(|major| *major == 3)
}

/// Reads a ClientHello, which may be cut over several records.
pub(crate) fn read_hello(bytes: &[u8]) -> Read {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((header, after)) = rest.split_first_chunk::<5>() else {
            return part(bytes);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != 3 || length == 0 || length > MAX_RECORD {
            return Read::Wrong;
        }
        let Some((record, after)) = after.split_at_checked(length) else {
            return part(bytes);
        };
        message.extend_from_slice(record);
        rest = after;
        let Some((header, body)) = message.split_first_chunk::<4>() else {
            continue;
        };
        if header[0] != CLIENT_HELLO {
            return Read::Wrong;
        }
        let length = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
        if length > MAX_HELLO {
            return Read::Wrong;
        }
        if let Some(body) = body.get(..length) {
            return hello(body).map_or(Read::Wrong, Read::Whole);
        }
    }
}

fn part(bytes: &[u8]) -> Read {
    if bytes.len() > MAX_HELLO { Read::Wrong } else { Read::Part }
}

/// A piece of a message that is taken from its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (piece, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(piece)
    }

    fn byte(&mut self) -> Option<usize> {
        self.take(1).map(|one| usize::from(one[0]))
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|two| u16::from_be_bytes([two[0], two[1]]))
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length)
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(length.into())
    }
}

fn hello(body: &[u8]) -> Option<Hello> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?; // the old version, and the random bytes
    reader.short()?; // session
    reader.long()?; // cipher suites
    reader.short()?; // compression
    let mut found = Hello { name: None, hidden: false };
    if reader.0.is_empty() {
        return Some(found); // no extensions at all
    }
    let mut extensions = Reader(reader.long()?);
    if !reader.0.is_empty() {
        return None;
    }
    let mut named = false;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let value = extensions.long()?;
        match kind {
            // Twice would leave it to the server which one counts.
            SERVER_NAME if named => return None,
            SERVER_NAME => {
                named = true;
                found.name = Some(server_name(value)?);
            }
            ENCRYPTED_HELLO => found.hidden = true,
            _ => {}
        }
    }
    Some(found)
}

/// One name of the only kind there is.
fn server_name(value: &[u8]) -> Option<String> {
    let mut outer = Reader(value);
    let mut list = Reader(outer.long()?);
    if !outer.0.is_empty() || list.byte()? != 0 {
        return None;
    }
    let name = list.long()?;
    if !list.0.is_empty() {
        return None;
    }
    String::from_utf8(name.to_vec()).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_length(bytes: &[u8]) -> Vec<u8> {
        let length = u16::try_from(bytes.len()).unwrap();
        [&length.to_be_bytes()[..], bytes].concat()
    }

    fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &with_length(value)].concat()
    }

    fn sni(name: &[u8]) -> Vec<u8> {
        extension(0, &with_length(&[&[0][..], &with_length(name)].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(with_length(&[0x13, 0x01]));
        body.extend([1, 0]);
        body.extend(with_length(extensions));
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[1, length[1], length[2], length[3]][..], &body].concat()
    }

    fn records(message: &[u8], each: usize) -> Vec<u8> {
        message
            .chunks(each)
            .flat_map(|part| [&[22, 3, 1][..], &with_length(part)].concat())
            .collect()
    }

    #[test]
    fn the_name_is_read_however_the_hello_is_cut() {
        let message = message(&[extension(0x2b, &[2, 3, 4]), sni(b"a.example")].concat());
        let wanted = Read::Whole(Hello { name: Some("a.example".into()), hidden: false });
        for each in [1, 7, 40, 16_000] {
            let bytes = records(&message, each);
            assert_eq!(read_hello(&bytes), wanted, "{each}");
            for cut in 0..bytes.len() {
                assert_eq!(read_hello(&bytes[..cut]), Read::Part, "{each} {cut}");
            }
        }
    }

    #[test]
    fn a_name_that_is_hidden_or_missing_is_seen_to_be() {
        let read = |extensions: &[u8]| read_hello(&records(&message(extensions), 16_000));
        assert_eq!(read(&[]), Read::Whole(Hello { name: None, hidden: false }));
        let both = [sni(b"a.example"), extension(0xfe0d, &[0; 8])].concat();
        assert_eq!(
            read(&both),
            Read::Whole(Hello { name: Some("a.example".into()), hidden: true })
        );
    }

    #[test]
    fn two_names_are_none() {
        let read = |extensions: &[u8]| read_hello(&records(&message(extensions), 16_000));
        assert_eq!(read(&[sni(b"a.example"), sni(b"b.example")].concat()), Read::Wrong);
        let two = [&[0][..], &with_length(b"a.example"), &[0], &with_length(b"b.example")].concat();
        assert_eq!(read(&extension(0, &with_length(&two))), Read::Wrong);
        assert_eq!(read_hello(b"GET / HTTP/1.1\r\n"), Read::Wrong);
        assert_eq!(read_hello(&[22, 3, 1, 0, 0]), Read::Wrong);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), each in 1usize..50) {
            read_hello(&bytes);
            read_hello(&records(&[&[1, 0, 1, 0][..], &bytes].concat(), each));
        }
    }
}
