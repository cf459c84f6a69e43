//! How frames look: where their length and their destination stand.

use std::fmt;
use std::str::FromStr;

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::{MeshField, MeshFraming};

/// The furthest that a field may begin, in bytes: more than any protocol with such a header needs.
const FURTHEST_FIELD: u32 = 1024;

/// The longest frame that a mesh can be made for, in bytes. The kernel's stream parser refuses what is
/// longer than the receive buffer (`__strp_recv`, Linux 6.18), which begins with 128 KiB (`tcp_rmem`).
pub const LONGEST_FRAME: u32 = 64 << 10;

/// The body of a notice, in bytes.
pub(super) const NOTICE_BODY_BYTES: u32 = 24;

/// An unsigned integer in the header of a frame. It is written `u32be@4`: width in bits, byte order,
/// offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// How many bytes it has: 1, 2, 4 or 8.
    pub width_bytes: u32,
    /// Whether the lowest byte comes first.
    pub little_endian: bool,
    /// Where it begins in the frame.
    pub offset_bytes: u32,
}

/// The length of a frame. It is written as a field, and `+N` behind it says how many bytes of the frame it
/// does not count: `u32be@0+0` counts the whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Where it stands.
    pub field: Field,
    /// The bytes of the frame that it does not count; `None`: the header.
    pub added_bytes: Option<u32>,
}

/// How the frames of a mesh look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    length: Length,
    destination: Field,
    most_bytes: u32,
}

impl Framing {
    /// Frames of at most `most_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if a field is of no possible width or offset, if the fields overlap, or if no notice
    /// of the mesh would fit the frames.
    pub fn new(length: Length, destination: Field, most_bytes: u32) -> Result<Self> {
        for field in [length.field, destination] {
            if ![1, 2, 4, 8].contains(&field.width_bytes) || field.offset_bytes > FURTHEST_FIELD {
                return Err(Error::new(
                    ErrorKind::EngineRefused,
                    format!(
                        "a field of {} bytes at offset {} is not possible; give it 1, 2, 4 or 8 bytes, at an offset \
                         up to {FURTHEST_FIELD}",
                        field.width_bytes, field.offset_bytes
                    ),
                ));
            }
        }
        let framing = Self {
            length,
            destination,
            most_bytes,
        };
        let [from, to] = [length.field, destination].map(|field| (field.offset_bytes, field.end()));
        let refused = if from.0 < to.1 && to.0 < from.1 {
            format!(
                "the length {} and the destination {destination} overlap; give one another offset",
                length.field
            )
        } else if most_bytes > LONGEST_FRAME {
            format!(
                "frames of {most_bytes} bytes are too long for the kernel; at most {LONGEST_FRAME} are possible"
            )
        } else if framing.notice_bytes() > most_bytes {
            format!(
                "the mesh's own frames have {} bytes and the limit is {most_bytes}; raise it",
                framing.notice_bytes()
            )
        } else if framing.added_bytes() > framing.notice_bytes() {
            format!(
                "the length leaves out {} bytes, more than the {} of the mesh's own frames; lower it",
                framing.added_bytes(),
                framing.notice_bytes()
            )
        } else if u64::from(framing.notice_bytes() - framing.added_bytes()) > length.field.most() {
            format!(
                "a length {} is too narrow for the mesh's own frames; widen it",
                length.field
            )
        } else {
            return Ok(framing);
        };
        Err(Error::new(ErrorKind::EngineRefused, refused))
    }

    /// Up to the end of the later field; no frame is shorter.
    pub fn header_bytes(&self) -> u32 {
        self.length.field.end().max(self.destination.end())
    }

    /// No frame is longer.
    pub fn most_bytes(&self) -> u32 {
        self.most_bytes
    }

    /// What the length does not count.
    pub fn added_bytes(&self) -> u32 {
        self.length
            .added_bytes
            .unwrap_or_else(|| self.header_bytes())
    }

    /// A frame to `destination`; the bytes of its header beside the two fields are zero. `None` if it would be
    /// too long, or a value too large for its field.
    pub fn frame(&self, destination: u64, body: &[u8]) -> Option<Vec<u8>> {
        let header = self.header_bytes() as usize;
        let bytes = u32::try_from(header + body.len()).ok()?;
        let counted = bytes.checked_sub(self.added_bytes())?;
        if bytes > self.most_bytes {
            return None;
        }
        let mut frame = vec![0; header];
        self.length.field.write(&mut frame, counted.into())?;
        self.destination.write(&mut frame, destination)?;
        frame.extend_from_slice(body);
        Some(frame)
    }

    /// How many bytes the frame at the front of `bytes` has: `None` if its header is not complete.
    ///
    /// # Errors
    /// The length that is out of bounds, as the field says it.
    pub fn length_of(&self, bytes: &[u8]) -> std::result::Result<Option<usize>, u64> {
        if bytes.len() < self.header_bytes() as usize {
            return Ok(None);
        }
        let Some(length) = self.length.field.read(bytes) else {
            return Ok(None);
        };
        let whole = length.saturating_add(self.added_bytes().into());
        match u32::try_from(whole) {
            Ok(whole) if (self.header_bytes()..=self.most_bytes).contains(&whole) => {
                Ok(Some(whole as usize))
            }
            _ => Err(length),
        }
    }

    /// The destination of a frame; `None` if it is not there yet.
    pub fn destination_of(&self, frame: &[u8]) -> Option<u64> {
        self.destination.read(frame)
    }

    /// The largest id that the destination can name.
    pub fn most_ids(&self) -> u64 {
        self.destination.most()
    }

    pub(super) fn as_entry(&self, member_bytes: u32) -> MeshFraming {
        MeshFraming {
            length: self.length.field.as_entry(),
            destination: self.destination.as_entry(),
            added_bytes: self.added_bytes(),
            header_bytes: self.header_bytes(),
            most_bytes: self.most_bytes,
            member_bytes,
            ..MeshFraming::default()
        }
    }

    /// Names another destination in a frame; `None` if its field cannot.
    pub(super) fn readdress(&self, frame: &mut [u8], destination: u64) -> Option<()> {
        self.destination.write(frame, destination)
    }

    fn notice_bytes(&self) -> u32 {
        self.header_bytes() + NOTICE_BODY_BYTES
    }
}

impl Field {
    fn end(self) -> u32 {
        self.offset_bytes + self.width_bytes
    }

    fn most(self) -> u64 {
        u64::MAX >> (64 - 8 * self.width_bytes)
    }

    fn read(self, bytes: &[u8]) -> Option<u64> {
        let raw = bytes.get(self.offset_bytes as usize..self.end() as usize)?;
        let fold = |sum, byte: &u8| sum << 8 | u64::from(*byte);
        Some(match self.little_endian {
            true => raw.iter().rev().fold(0, fold),
            false => raw.iter().fold(0, fold),
        })
    }

    fn write(self, bytes: &mut [u8], value: u64) -> Option<()> {
        let raw = bytes.get_mut(self.offset_bytes as usize..self.end() as usize)?;
        let whole = value.to_be_bytes();
        let (zeros, low) = whole.split_at(8 - raw.len());
        if zeros.iter().any(|byte| *byte != 0) {
            return None;
        }
        raw.copy_from_slice(low);
        if self.little_endian {
            raw.reverse();
        }
        Some(())
    }

    fn as_entry(self) -> MeshField {
        MeshField {
            offset: self.offset_bytes,
            bytes: self.width_bytes,
            little_endian: self.little_endian.into(),
            ..MeshField::default()
        }
    }
}

fn unreadable(text: &str) -> Error {
    Error::new(
        ErrorKind::EngineRefused,
        format!(
            "{text:?} is no field; write width, byte order and offset, such as u32be@0 or u16le@4 \
             (u8, u16, u32, u64; offsets up to {FURTHEST_FIELD})"
        ),
    )
}

impl FromStr for Field {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (kind, offset) = text.split_once('@')?;
            let (width_bytes, little_endian) = match kind {
                "u8" => (1, false),
                "u16be" => (2, false),
                "u16le" => (2, true),
                "u32be" => (4, false),
                "u32le" => (4, true),
                "u64be" => (8, false),
                "u64le" => (8, true),
                _ => return None,
            };
            let offset_bytes = number(offset).filter(|offset| *offset <= FURTHEST_FIELD)?;
            Some(Self {
                width_bytes,
                little_endian,
                offset_bytes,
            })
        };
        parse().ok_or_else(|| unreadable(text))
    }
}

impl FromStr for Length {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (field, added) = match text.split_once('+') {
            Some((field, added)) => {
                let added = number(added).filter(|added| *added <= LONGEST_FRAME);
                (field, Some(added.ok_or_else(|| unreadable_sum(text))?))
            }
            None => (text, None),
        };
        Ok(Self {
            field: field.parse()?,
            added_bytes: added,
        })
    }
}

fn unreadable_sum(text: &str) -> Error {
    Error::new(
        ErrorKind::EngineRefused,
        format!(
            "{text:?} does not say what the length leaves out; write a number of bytes behind the plus sign"
        ),
    )
}

/// A number without sign.
fn number(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match (self.width_bytes, self.little_endian) {
            (1, _) => "",
            (_, true) => "le",
            (_, false) => "be",
        };
        write!(f, "u{}{order}@{}", 8 * self.width_bytes, self.offset_bytes)
    }
}
