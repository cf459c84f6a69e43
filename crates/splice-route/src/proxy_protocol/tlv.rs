//! Type-length-value fields behind the addresses of version 2.

use crate::progress::Fault;

/// No type has this number (section 2.2).
pub(super) const UNASSIGNED: u8 = 0x00;
pub(super) const ALPN: u8 = 0x01;
pub(super) const AUTHORITY: u8 = 0x02;
pub(super) const CRC32C: u8 = 0x03;
pub(super) const NOOP: u8 = 0x04;
pub(super) const UNIQUE_ID: u8 = 0x05;

/// Bytes of type and length.
pub(super) const HEAD_BYTES: usize = 3;

/// The longest unique ID in bytes (section 2.2.5).
pub(super) const LONGEST_UNIQUE_ID_BYTES: usize = 128;

const CUT: Fault = Fault("a field of the PROXY header is longer than the header");
const CHECKSUM_FORM: Fault = Fault("the PROXY header has a checksum that is not of four bytes");
const TWO_CHECKSUMS: Fault = Fault("the PROXY header has two checksums");
const LONG_UNIQUE_ID: Fault = Fault("the PROXY header has a unique ID of more than 128 bytes");

/// The fields of a header, as they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tlvs {
    /// Well formed.
    bytes: Box<[u8]>,
}

impl Tlvs {
    /// The fields with their types, in the order in which they were sent.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = &*self.bytes;
        std::iter::from_fn(move || {
            let (kind, value, behind) = split(rest)?;
            rest = behind;
            Some((kind, value))
        })
    }

    /// The first field of this type.
    pub fn get(&self, kind: u8) -> Option<&[u8]> {
        self.iter().find(|tlv| tlv.0 == kind).map(|tlv| tlv.1)
    }

    /// What identifies the connection in the logs of all proxies. An empty one says nothing.
    pub fn unique_id(&self) -> Option<&[u8]> {
        let mut ids = self.iter().filter(|tlv| tlv.0 == UNIQUE_ID);
        ids.find(|id| !id.1.is_empty()).map(|id| id.1)
    }

    /// Checks the fields in `bytes`. Answers with them, and with the place of the checksum.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, Option<usize>), Fault> {
        let mut checksum_at = None;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (kind, value, behind) = split(rest).ok_or(CUT)?;
            match kind {
                CRC32C if value.len() != 4 => return Err(CHECKSUM_FORM),
                CRC32C if checksum_at.is_some() => return Err(TWO_CHECKSUMS),
                CRC32C => checksum_at = Some(bytes.len() - rest.len() + HEAD_BYTES),
                UNIQUE_ID if value.len() > LONGEST_UNIQUE_ID_BYTES => return Err(LONG_UNIQUE_ID),
                _ => {}
            }
            rest = behind;
        }
        let bytes = bytes.into();
        Ok((Self { bytes }, checksum_at))
    }
}

/// The first field's type and value, and what comes behind it.
fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[kind, high, low], rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let (value, rest) = rest.split_at_checked(length)?;
    Some((kind, value, rest))
}
