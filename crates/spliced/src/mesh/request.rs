//! What a client asks of the mesh: the body of a frame to destination 0. All numbers are in network byte order.

/// The most bytes of a name: as much as a label of a host name, and a line of the log holds it.
pub(super) const MOST_NAME_BYTES: usize = 64;

/// A request, as it stands in a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// To become a member: the first frame. Without a number or a name, the number is 0 and the name empty.
    Register {
        number: u64,
        name: &'a [u8],
        token: &'a [u8],
    },
    /// Who has this name?
    LookUp { tag: u32, name: &'a [u8] },
    /// To get the frames to a group.
    Join { tag: u32, group: u64 },
    /// To get them no longer.
    Leave { tag: u32, group: u64 },
}

const REGISTER: u32 = 1;
const LOOK_UP: u32 = 2;
const JOIN: u32 = 3;
const LEAVE: u32 = 4;

impl<'a> Request<'a> {
    /// # Errors
    /// The tag of what cannot be read, 0 without one.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, u32> {
        let Some((code, rest)) = number(body) else {
            return Err(0);
        };
        if code == REGISTER {
            return Self::registration(rest).ok_or(0);
        }
        let Some((tag, rest)) = number(rest) else {
            return Err(0);
        };
        let group = || rest.try_into().map(u64::from_be_bytes).map_err(|_| tag);
        match code {
            LOOK_UP => Ok(Self::LookUp { tag, name: rest }),
            JOIN => group().map(|group| Self::Join { tag, group }),
            LEAVE => group().map(|group| Self::Leave { tag, group }),
            _ => Err(tag),
        }
    }

    fn registration(rest: &'a [u8]) -> Option<Self> {
        let (number, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first()?;
        let (name, token) = rest.split_at_checked((*bytes).into())?;
        Some(Self::Register {
            number: u64::from_be_bytes(*number),
            name,
            token,
        })
    }
}

/// A name that a member can have.
pub(super) fn name_of(bytes: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(bytes).ok()?;
    let suits = !name.is_empty() && name.len() <= MOST_NAME_BYTES;
    (suits && !name.chars().any(char::is_control)).then_some(name)
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_the_documentation_has_them() {
        let register = b"\0\0\0\x01\0\0\0\0\0\0\0\x07\x03bobtoken";
        let expected = Request::Register {
            number: 7,
            name: b"bob",
            token: b"token",
        };
        assert_eq!(Request::parse(register), Ok(expected));
        let look_up = Request::LookUp {
            tag: 9,
            name: b"bob",
        };
        assert_eq!(Request::parse(b"\0\0\0\x02\0\0\0\x09bob"), Ok(look_up));
        let join = b"\0\0\0\x03\0\0\0\x09\0\0\0\0\xff\xff\xff\xf0";
        let expected = Request::Join {
            tag: 9,
            group: 0xffff_fff0,
        };
        assert_eq!(Request::parse(join), Ok(expected));
        let mut leave = *join;
        leave[3] = 4;
        assert!(matches!(
            Request::parse(&leave),
            Ok(Request::Leave { tag: 9, .. })
        ));
    }

    #[test]
    fn what_is_cut_or_unknown_is_no_request() {
        let register = b"\0\0\0\x01\0\0\0\0\0\0\0\x07\x03bob";
        for bytes in 0..register.len() {
            assert_eq!(Request::parse(&register[..bytes]), Err(0), "{bytes}");
        }
        for (body, tag) in [
            (&b"\0\0\0\x03\0\0\0\x09\0\0\0\0"[..], 9),
            (b"\0\0\0\x04\0\0\0\x09\0\0\0\0\0\0\0\0\0", 9),
            (b"\0\0\0\x05\0\0\0\x09", 9),
            (b"\0\0\0\x02\0\0\0", 0),
        ] {
            assert_eq!(Request::parse(body), Err(tag), "{body:?}");
        }
    }

    #[test]
    fn a_name_is_short_text_without_control_characters() {
        assert_eq!(name_of("Jörg's host".as_bytes()), Some("Jörg's host"));
        assert!(name_of(&[b'a'; MOST_NAME_BYTES]).is_some());
        for bad in [
            &b""[..],
            b"a\nb",
            b"a\0",
            b"\xff",
            &[b'a'; MOST_NAME_BYTES + 1],
        ] {
            assert_eq!(name_of(bad), None, "{bad:?}");
        }
    }
}
