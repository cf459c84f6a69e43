//! The name of a control socket in its directory, and where it is bound before it gets that.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;

/// What stands between the path of a socket and a random number where the socket is bound.
const BOUND: &str = ".spliced-";

/// The digits of this number.
const BOUND_DIGITS: usize = 8;

/// How many processes with the same number, in other PID namespaces, may share a directory.
const NAMESAKES_MOST: u32 = 64;

/// What a socket is called in its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// By its user.
    Given(String),
    /// By the number of the process, so that each has its own.
    OfProcess,
}

impl Name {
    /// The names to try, one after the other.
    pub(super) fn to_try(&self) -> Vec<String> {
        match self {
            Self::Given(name) => vec![name.clone()],
            Self::OfProcess => {
                let id = std::process::id();
                let others = (2..=NAMESAKES_MOST).map(|number| format!("{id}-{number}.sock"));
                std::iter::once(format!("{id}.sock"))
                    .chain(others)
                    .collect()
            }
        }
    }

    /// Whether this is the name of a socket that a start may remove once nobody listens on it.
    pub(super) fn covers(&self, found: &str) -> bool {
        let of_socket = before_suffix(found);
        match self {
            // That of the path itself is replaced when its turn has come.
            Self::Given(name) => of_socket == Some(name),
            Self::OfProcess => is_of_process(of_socket.unwrap_or(found)),
        }
    }
}

/// Whether this is the name of a socket of a process to which nobody has given another name.
pub(super) fn is_of_process(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_suffix(".sock")
        .is_some_and(|stem| match stem.split_once('-') {
            Some((id, number)) => is_number(id) && is_number(number),
            None => is_number(stem),
        })
}

/// The path of the control socket that was bound at `bound`, if it is one.
pub(super) fn path_of_bound(bound: &str) -> Option<PathBuf> {
    before_suffix(bound).map(PathBuf::from)
}

fn before_suffix(bound: &str) -> Option<&str> {
    let (path, number) = bound.rsplit_once(BOUND)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (number.len() == BOUND_DIGITS && number.bytes().all(is_digit) && !path.is_empty())
        .then_some(path)
}

/// Where the socket `name` is bound. A start removes what is left there if its process was killed.
pub(super) fn bound_name(name: &str) -> String {
    // The standard library seeds each of them at random.
    let number = RandomState::new().hash_one(()) as u32;
    format!("{name}{BOUND}{number:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_by_where_its_socket_was_bound() {
        let of =
            |bound: &str| path_of_bound(bound).and_then(|path| path.to_str().map(String::from));
        let found = of("/run/x.sock.spliced-0123abcd");
        assert_eq!(found.as_deref(), Some("/run/x.sock"));
        assert_eq!(
            of(&format!("/run/{}", bound_name("y"))).as_deref(),
            Some("/run/y")
        );
        for other in [
            "/run/x.sock",
            "/run/x.spliced-",
            "/run/x.spliced-0123ABCD",
            ".spliced-0123abcd",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
