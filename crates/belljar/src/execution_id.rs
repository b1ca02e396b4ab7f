//! The name of a run.

use std::time::SystemTime;

use crate::model::error::Error;

/// A ULID: sorts by time, unguessable in its last 80 bits.
pub(crate) fn new_id() -> Result<String, Error> {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let mut random = [0u8; 10];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::Backend { operation: "get randomness", source: errno.into() })?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut value = since.as_millis() << 80;
    value |= random.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte));
    let digits = (0..26).rev().map(|place| (value >> (place * 5)) & 31);
    Ok(digits.map(|digit| char::from(ALPHABET[usize::try_from(digit).unwrap_or(0)])).collect())
}
