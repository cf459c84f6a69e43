//! The names in /etc/hosts.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use crate::text_file;

/// Lists of names to block have some 5 MiB.
const MOST_MIB: u64 = 16;

/// Names in lower case and their addresses, IPv4 ones first.
#[derive(Debug, Default)]
pub(super) struct Hosts(HashMap<Box<str>, Vec<IpAddr>>);

impl Hosts {
    /// Most hosts have no names of their own in it, and some have no such file. One that cannot be read may have a name
    /// that is asked for, and may be there to keep clients from the address that DNS has.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    pub(super) fn read(path: &str) -> Result<Self, String> {
        match text_file::read_bytes(Path::new(path), MOST_MIB) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{path} cannot be read: {error}")),
            // Comments may be in any encoding.
            Ok(text) => Ok(Self::parse(&String::from_utf8_lossy(&text))),
        }
    }

    /// As hosts(5) describes it. A line without an address is passed over, as the C library does.
    fn parse(text: &str) -> Self {
        let mut names = HashMap::<Box<str>, Vec<IpAddr>>::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse) else {
                continue;
            };
            for name in words {
                let addresses = names.entry(key(name).into()).or_default();
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        for addresses in names.values_mut() {
            addresses.sort_by_key(IpAddr::is_ipv6);
            addresses.shrink_to_fit();
        }
        Self(names)
    }

    /// Empty if it does not have the name.
    pub(super) fn addresses(&self, name: &str) -> &[IpAddr] {
        self.0.get(key(name).as_str()).map_or(&[], Vec::as_slice)
    }
}

/// A name with the root's dot at its end is the same (RFC 1034, 3.1).
fn key(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use netlab::Scratch;

    use super::*;

    #[test]
    fn lines_are_taken_as_hosts_5_describes_them() {
        let hosts = Hosts::parse(
            "# 192.0.2.9 no\n\n2001:db8::1\tBoth.test  alias\r\n 192.0.2.1 both.test # not this\n192.0.2.1 both.test.\n\
             nonsense a\n192.0.2.2\n192.0.2.3 last",
        );
        let of = |name| {
            let addresses = hosts.addresses(name).iter();
            addresses.map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of("BOTH.test."), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(of("alias"), ["2001:db8::1"]);
        assert_eq!(of("last"), ["192.0.2.3"]);
        for name in ["no", "not", "this", "#", "a", "192.0.2.2", "", "."] {
            assert!(of(name).is_empty(), "{name}");
        }
    }

    #[test]
    fn only_a_file_that_is_not_there_has_no_names() {
        let scratch = Scratch::new("hosts").expect("a directory");
        let read = |path: &Path| Hosts::read(path.to_str().expect("a path"));
        let none = read(&scratch.path().join("none")).expect("no names");
        assert!(none.addresses("a").is_empty());
        for path in [scratch.path(), Path::new("/dev/zero")] {
            let why = read(path).expect_err("not known");
            assert!(
                why.contains("cannot be read: it is not a regular file"),
                "{why}"
            );
        }
        let path = scratch.path().join("hosts");
        fs::write(&path, b"192.0.2.1 a # caf\xe9\n").expect("written");
        let hosts = read(&path).expect("read");
        assert_eq!(hosts.addresses("A"), [IpAddr::from([192, 0, 2, 1])]);
    }
}
