//! Who may connect to a UNIX listener: mode, owner and group of its socket file.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use nix::unistd::{Group, User};
use splice::SocketName;

/// What is `None` is as bind(2) makes it, by the umask and the user of the process.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileAccess {
    /// Mode of the socket file of LISTEN (unix:/path, unixgram:/path), in octal, such as 0660. Whoever may write to the file
    /// may connect, or send.
    /// An access control list that the file inherits from its directory is removed [default: by the umask].
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<FileMode>,

    /// Owner of the socket file of LISTEN, a name or a number [default: the user who runs spliced].
    #[arg(long, value_name = "USER", value_parser = user)]
    pub(crate) owner: Option<u32>,

    /// Group of the socket file of LISTEN, a name or a number [default: the group that spliced runs as, or that of a
    /// directory with the set-group-ID bit].
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub(crate) group: Option<u32>,
}

/// Permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMode(u32);

/// The number that chown(2) takes for "as it is".
const UNCHANGED: u32 = u32::MAX;

impl FileAccess {
    /// Why a listener on `address` cannot have this.
    pub(crate) fn suit(self, address: &SocketName) -> Result<(), String> {
        let file = match address {
            SocketName::Connected(address) | SocketName::UnixDatagram(address) => {
                address.socket_file()
            }
            SocketName::Udp(_) => None,
        };
        if self == Self::default() || file.is_some() {
            return Ok(());
        }
        let instead = match address {
            _ if address.is_datagram() => "unixgram:/path",
            _ if address.is_seqpacket() => "seqpacket:/path",
            _ => "unix:/path",
        };
        Err(format!(
            "mode, owner and group are those of a socket file, which {address} does not have; leave them out, or listen on \
             {instead}"
        ))
    }
}

impl FileMode {
    pub(crate) const ALL: Self = Self(0o777);

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for FileMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_octal = text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        if !is_octal || !matches!(text.len(), 3 | 4) {
            return Err("it is not an octal mode; write four digits, such as 0660");
        }
        match u32::from_str_radix(text, 8) {
            Ok(bits) if bits > 0o777 => {
                Err("a socket has no set-user-ID, set-group-ID and sticky bit; begin with 0")
            }
            // The next start connects, too, to see whether the socket is in use.
            Ok(bits) if bits & 0o200 == 0 => {
                Err("connecting needs the right to write, which the owner would not have; add 0200")
            }
            Ok(bits) => Ok(Self(bits)),
            Err(_) => Err("it is not an octal mode; write four digits, such as 0660"),
        }
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The number of a user, given by name or number.
pub(crate) fn user(text: &str) -> Result<u32, String> {
    number(text, "user", |name| {
        Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
    })
}

/// The number of a group, given by name or number.
pub(crate) fn group(text: &str) -> Result<u32, String> {
    number(text, "group", |name| {
        Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
    })
}

fn number(
    text: &str,
    what: &str,
    look_up: impl FnOnce(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(number) if number != UNCHANGED => Ok(number),
            _ => Err(format!(
                "no {what} can have this number; write one below {UNCHANGED}"
            )),
        };
    }
    match look_up(text) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(format!(
            "this host has no such {what}; add it, or write its number"
        )),
        Err(error) => Err(format!(
            "the {what} cannot be looked up: {error}; write its number"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_and_lets_the_owner_connect() {
        for (text, bits) in [
            ("0660", 0o660),
            ("660", 0o660),
            ("0777", 0o777),
            ("0200", 0o200),
        ] {
            let mode: FileMode = text.parse().expect(text);
            assert_eq!(mode.bits(), bits, "{text}");
        }
        for (text, why) in [
            ("", "not an octal mode"),
            ("66", "not an octal mode"),
            ("0o660", "not an octal mode"),
            ("+660", "not an octal mode"),
            ("0680", "not an octal mode"),
            ("00660", "not an octal mode"),
            ("1660", "sticky bit"),
            ("0466", "add 0200"),
        ] {
            let told = text.parse::<FileMode>().expect_err(text);
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn users_and_groups_have_names_and_numbers() {
        assert_eq!(user("root"), Ok(0));
        assert_eq!(group("root"), Ok(0));
        assert_eq!(user("1234"), Ok(1234));
        assert_eq!(group("4294967294"), Ok(UNCHANGED - 1));
        for text in ["", "4294967295", "-1", "no such user", "nul\0nul"] {
            assert!(user(text).is_err() && group(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_a_socket_file_has_them() {
        let access = FileAccess {
            group: Some(0),
            ..FileAccess::default()
        };
        let suits = |text: &str, access: FileAccess| {
            let address = text.parse().expect("an address");
            access.suit(&address).is_ok()
        };
        assert!(suits("unix:/run/x", access));
        assert!(suits("unixgram:/run/x", access));
        for other in ["127.0.0.1:80", "unix:@x", ":80", "unixgram:@x", "udp::80"] {
            assert!(!suits(other, access), "{other}");
            assert!(suits(other, FileAccess::default()), "{other}");
        }
    }
}
