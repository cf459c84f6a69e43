//! How frames look: where their length and their destination stand.

use std::fmt;
use std::str::FromStr;

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::{MeshField, MeshFraming};

/// The furthest that a field may begin, in bytes: more than any protocol with such a header needs.
const FURTHEST_FIELD: u32 = 1024;

/// The most bytes of a field: its value is one of 64 bits.
const WIDEST_FIELD: u32 = 8;

/// The longest frame that a mesh can be made for, in bytes. The kernel's stream parser refuses what is
/// longer than the receive buffer (`__strp_recv`, Linux 6.18), which begins with 128 KiB (`tcp_rmem`).
pub const LONGEST_FRAME: u32 = 64 << 10;

/// The numbers in the body of a notice, in bytes. With a delimiter they are written as hexadecimal digits.
pub(super) const NOTICE_BODY_BYTES: u32 = 24;

/// An unsigned integer in the header of a frame. It is written `u32be@4`: width in bits, byte order,
/// offset in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// How many bytes it has, 1 to 8.
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

/// A length that no frame can have, as its field says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The frame would be longer than the limit.
    TooLong(u64),
    /// The frame would be shorter than its header.
    TooShort(u64),
}

/// How the frames of a mesh look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    end: End,
    destination: Field,
    most_bytes: u32,
}

/// What says where a frame ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Length(Length),
    /// The first such byte behind the header.
    Delimiter(u8),
}

impl Framing {
    /// Frames of at most `most_bytes` that have their length in a field.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if a field is of no possible width or offset, if the fields overlap, or if no notice
    /// of the mesh would fit the frames.
    pub fn new(length: Length, destination: Field, most_bytes: u32) -> Result<Self> {
        check_field(length.field)?;
        check_field(destination)?;
        let framing = Self {
            end: End::Length(length),
            destination,
            most_bytes,
        };
        let [from, to] = [length.field, destination].map(|field| (field.offset_bytes, field.end()));
        if from.0 < to.1 && to.0 < from.1 {
            return refuse(format!(
                "the length {} and the destination {destination} overlap; give one another offset",
                length.field
            ));
        }
        framing.check_bytes()?;
        if framing.added_bytes() > framing.notice_bytes() {
            refuse(format!(
                "the length leaves out {} bytes, more than the {} of the mesh's own frames; lower it",
                framing.added_bytes(),
                framing.notice_bytes()
            ))
        } else if u64::from(framing.notice_bytes() - framing.added_bytes()) > length.field.most() {
            refuse(format!(
                "a length {} is too narrow for the mesh's own frames; widen it",
                length.field
            ))
        } else {
            Ok(framing)
        }
    }

    /// Frames of at most `most_bytes`, each of which ends with the first `delimiter` behind its header. The header ends with
    /// the destination, and may have any bytes.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] if the field is of no possible width or offset, if the delimiter is a hexadecimal digit,
    /// in which notices are written, or if no notice would fit the frames.
    pub fn delimited(delimiter: u8, destination: Field, most_bytes: u32) -> Result<Self> {
        check_field(destination)?;
        if matches!(delimiter, b'0'..=b'9' | b'a'..=b'f') {
            return refuse(format!(
                "the mesh's own frames have the digit {:?}; choose another delimiter",
                char::from(delimiter)
            ));
        }
        let framing = Self {
            end: End::Delimiter(delimiter),
            destination,
            most_bytes,
        };
        framing.check_bytes()?;
        Ok(framing)
    }

    fn check_bytes(&self) -> Result<()> {
        let most_bytes = self.most_bytes;
        if most_bytes > LONGEST_FRAME {
            refuse(format!(
                "frames of {most_bytes} bytes are too long for the kernel; at most {LONGEST_FRAME} are possible"
            ))
        } else if self.notice_bytes() > most_bytes {
            refuse(format!(
                "the mesh's own frames have {} bytes and the limit is {most_bytes}; raise it",
                self.notice_bytes()
            ))
        } else {
            Ok(())
        }
    }

    /// Up to the end of the later field; no frame is shorter.
    pub fn header_bytes(&self) -> u32 {
        match self.end {
            End::Length(length) => length.field.end().max(self.destination.end()),
            End::Delimiter(_) => self.destination.end(),
        }
    }

    /// No frame is longer.
    pub fn most_bytes(&self) -> u32 {
        self.most_bytes
    }

    /// The byte that ends a frame, if there is one.
    pub fn delimiter(&self) -> Option<u8> {
        match self.end {
            End::Length(_) => None,
            End::Delimiter(delimiter) => Some(delimiter),
        }
    }

    /// What the length does not count; 0 if there is none.
    pub fn added_bytes(&self) -> u32 {
        match self.end {
            End::Length(length) => (length.added_bytes).unwrap_or_else(|| self.header_bytes()),
            End::Delimiter(_) => 0,
        }
    }

    /// A frame to `destination`; the bytes of its header beside the fields are zero. `None` if it would be too long, a value
    /// too large for its field, or if the delimiter is in the body.
    pub fn frame(&self, destination: u64, body: &[u8]) -> Option<Vec<u8>> {
        let header = self.header_bytes() as usize;
        let mut frame = vec![0; header];
        self.destination.write(&mut frame, destination)?;
        frame.extend_from_slice(body);
        frame.extend(self.delimiter());
        let bytes = u32::try_from(frame.len()).ok()?;
        if let End::Length(length) = self.end {
            let counted = bytes.checked_sub(self.added_bytes())?;
            length.field.write(&mut frame, counted.into())?;
        } else if self.delimiter().is_some_and(|end| body.contains(&end)) {
            return None;
        }
        (bytes <= self.most_bytes).then_some(frame)
    }

    /// The body of a whole frame.
    pub fn body_of<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let end = frame.len().checked_sub(self.delimiter().is_some().into())?;
        frame.get(self.header_bytes() as usize..end)
    }

    /// How many bytes the frame at the front of `bytes` has: `None` if its header, or its delimiter, has not come.
    ///
    /// # Errors
    /// The length that is out of bounds, as the field says it; or the limit, if there is no delimiter within it.
    pub fn length_of(&self, bytes: &[u8]) -> std::result::Result<Option<usize>, u64> {
        self.measure(bytes, 0).map_err(|fault| match fault {
            Fault::TooLong(length) | Fault::TooShort(length) => length,
        })
    }

    /// [`length_of`](Self::length_of), with what is wrong about the length. The first `searched` bytes are known to have no
    /// delimiter.
    pub(super) fn measure(
        &self,
        bytes: &[u8],
        searched: usize,
    ) -> std::result::Result<Option<usize>, Fault> {
        let (header, most) = (self.header_bytes(), self.most_bytes);
        if bytes.len() < header as usize {
            return Ok(None);
        }
        let field = match self.end {
            End::Length(length) => length.field,
            End::Delimiter(delimiter) => {
                let from = searched.max(header as usize);
                let within = &bytes[..bytes.len().min(most as usize)];
                let found = within.iter().skip(from).position(|byte| *byte == delimiter);
                return match found {
                    Some(at) => Ok(Some(from + at + 1)),
                    None if within.len() < most as usize => Ok(None),
                    None => Err(Fault::TooLong(most.into())),
                };
            }
        };
        let Some(length) = field.read(bytes) else {
            return Ok(None);
        };
        let whole = length.saturating_add(self.added_bytes().into());
        if whole > most.into() {
            Err(Fault::TooLong(length))
        } else if whole < header.into() {
            Err(Fault::TooShort(length))
        } else {
            // It is at most `most_bytes`.
            Ok(Some(whole as usize))
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
        let length = match self.end {
            End::Length(length) => length.field.as_entry(),
            End::Delimiter(_) => MeshField::default(),
        };
        MeshFraming {
            length,
            destination: self.destination.as_entry(),
            added_bytes: self.added_bytes(),
            header_bytes: self.header_bytes(),
            most_bytes: self.most_bytes,
            member_bytes,
            is_delimited: self.delimiter().is_some().into(),
            delimiter: self.delimiter().unwrap_or_default().into(),
            ..MeshFraming::default()
        }
    }

    /// Names another destination in a frame; `None` if its field cannot.
    pub(super) fn readdress(&self, frame: &mut [u8], destination: u64) -> Option<()> {
        self.destination.write(frame, destination)
    }

    fn notice_bytes(&self) -> u32 {
        let body = match self.end {
            End::Length(_) => NOTICE_BODY_BYTES,
            End::Delimiter(_) => 2 * NOTICE_BODY_BYTES + 1,
        };
        self.header_bytes() + body
    }
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::new(ErrorKind::EngineRefused, why))
}

fn check_field(field: Field) -> Result<()> {
    if (1..=WIDEST_FIELD).contains(&field.width_bytes) && field.offset_bytes <= FURTHEST_FIELD {
        return Ok(());
    }
    refuse(format!(
        "a field of {} bytes at offset {} is not possible; give it 1 to {WIDEST_FIELD} bytes, at an offset up to \
         {FURTHEST_FIELD}",
        field.width_bytes, field.offset_bytes
    ))
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
             (u8, or u16 to u64 in steps of 8; offsets up to {FURTHEST_FIELD})"
        ),
    )
}

impl FromStr for Field {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (kind, offset) = text.split_once('@')?;
            let (bits, little_endian) = match kind.strip_suffix("be") {
                Some(bits) => (bits, false),
                None => (
                    kind.strip_suffix("le").unwrap_or(kind),
                    kind.ends_with("le"),
                ),
            };
            let bits = number(bits.strip_prefix('u')?)?;
            let width_bytes = bits / 8;
            // A single byte has no order, and more bytes have one.
            if bits % 8 != 0
                || !(1..=WIDEST_FIELD).contains(&width_bytes)
                || (width_bytes == 1) != (kind == "u8")
                || (width_bytes > 1 && !kind.ends_with('e'))
            {
                return None;
            }
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
