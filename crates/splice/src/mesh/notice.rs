//! What the mesh says to a member: a frame from destination 0.

use super::framing::{Framing, NOTICE_BODY_BYTES};

/// The destination in the header of a notice. No member has this id.
pub(super) const FROM_MESH: u64 = 0;

/// A notice. Behind the header it has four numbers in network byte order: the receiver's id (64 bits), the
/// code and the number of frames (32 bits each), and the destination (64 bits). In a framing with a delimiter each byte is
/// written as two hexadecimal digits, lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The id of the member that gets the notice.
    pub receiver: u64,
    /// What it is about.
    pub code: Code,
    /// How many frames it is about.
    pub frames: u32,
    /// The destination that they named, 0 for several; or the length that no frame can have.
    pub destination: u64,
}

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Code {
    /// 1: the receiver is a member now; its id is in the notice.
    Welcome = 1,
    /// 2: there is no such destination.
    Unknown = 2,
    /// 3: too much is on its way to the destination.
    Full = 3,
    /// 4: a frame is longer than the limit; the mesh closes the connection.
    TooLong = 4,
    /// 5: a frame is shorter than its header; the mesh closes the connection.
    TooShort = 5,
    /// 6: a frame did not become complete in time; the mesh closes the connection.
    Incomplete = 6,
    /// 7: frames were refused so fast that the mesh does not know for which of the reasons 2 and 3.
    Refused = 7,
    /// 8: another member has the id or the name; the program closes the connection.
    Taken = 8,
    /// 9: no member can have this id or name; the program closes the connection.
    BadName = 9,
    /// 10: the token is wrong; the program closes the connection.
    WrongToken = 10,
    /// 11: the client has not registered in time; the program closes the connection.
    TooLate = 11,
    /// 12: the first frame is no registration; the program closes the connection.
    NotRegistered = 12,
    /// 13: a member has the name that was asked for. The destination is its id, and the number of frames is
    /// the tag of the request, as with the other answers.
    Found = 13,
    /// 14: no member has the name.
    NoSuchName = 14,
    /// 15: the request was carried out.
    Done = 15,
    /// 16: the request cannot be read or carried out.
    BadRequest = 16,
    /// 17: the receiver neither sent nor got anything for too long; the mesh closes the connection.
    Idle = 17,
    /// 18: the mesh has as many members as it may; the program closes the connection.
    NoRoom = 18,
}

impl Code {
    const ALL: [Self; 18] = [
        Self::Welcome,
        Self::Unknown,
        Self::Full,
        Self::TooLong,
        Self::TooShort,
        Self::Incomplete,
        Self::Refused,
        Self::Taken,
        Self::BadName,
        Self::WrongToken,
        Self::TooLate,
        Self::NotRegistered,
        Self::Found,
        Self::NoSuchName,
        Self::Done,
        Self::BadRequest,
        Self::Idle,
        Self::NoRoom,
    ];
}

impl Notice {
    /// Reads a frame; `None` if it is not the mesh's.
    pub fn of_frame(framing: &Framing, frame: &[u8]) -> Option<Self> {
        if framing.destination_of(frame)? != FROM_MESH {
            return None;
        }
        let body = framing.body_of(frame)?;
        let numbers = framing.delimiter().map(|_| of_digits(body));
        let body = match &numbers {
            Some(numbers) => &numbers.as_ref()?[..],
            None => body,
        };
        let (receiver, body) = body.split_first_chunk()?;
        let (code, body) = body.split_first_chunk()?;
        let (frames, body) = body.split_first_chunk()?;
        let (destination, []) = body.split_first_chunk()? else {
            return None;
        };
        let code = u32::from_be_bytes(*code);
        Some(Self {
            receiver: u64::from_be_bytes(*receiver),
            code: Code::ALL.into_iter().find(|known| *known as u32 == code)?,
            frames: u32::from_be_bytes(*frames),
            destination: u64::from_be_bytes(*destination),
        })
    }

    /// The notice as a frame.
    pub fn to_frame(self, framing: &Framing) -> Vec<u8> {
        let mut body = Vec::with_capacity(NOTICE_BODY_BYTES as usize);
        body.extend(self.receiver.to_be_bytes());
        body.extend((self.code as u32).to_be_bytes());
        body.extend(self.frames.to_be_bytes());
        body.extend(self.destination.to_be_bytes());
        if framing.delimiter().is_some() {
            body = body
                .iter()
                .flat_map(|byte| format!("{byte:02x}").into_bytes())
                .collect();
        }
        // A framing that has no room for a notice was refused.
        framing.frame(FROM_MESH, &body).unwrap_or_default()
    }
}

fn of_digits(digits: &[u8]) -> Option<Vec<u8>> {
    let digits = std::str::from_utf8(digits).ok()?;
    let pairs = (0..digits.len())
        .step_by(2)
        .map(|at| digits.get(at..at + 2));
    pairs
        .map(|pair| u8::from_str_radix(pair?, 16).ok())
        .collect()
}
