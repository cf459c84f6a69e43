//! Host names, as clients name them and as rules do.

use std::fmt;
use std::str::FromStr;

/// What a rule says about a host name: `example.org`, or `*.example.org` for every name below it, at any
/// depth, without itself. Letters match in either case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamePattern {
    /// Lower case, without a trailing dot; for a wildcard what follows the star, with its dot.
    text: String,
    wildcard: bool,
}

impl NamePattern {
    /// Whether `name` matches, in any case. One trailing dot of `name` is ignored.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        if !self.wildcard {
            return name.eq_ignore_ascii_case(&self.text);
        }
        let split = name.len().checked_sub(self.text.len());
        split.is_some_and(|at| {
            at > 0 && name.is_char_boundary(at) && name[at..].eq_ignore_ascii_case(&self.text)
        })
    }
}

/// A text is no pattern of a host name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAName(&'static str);

impl fmt::Display for NotAName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotAName {}

/// The longest host name in bytes (RFC 1035, section 2.3.4), without its trailing dot.
const LONGEST_BYTES: usize = 253;

impl FromStr for NamePattern {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let (name, wildcard) = match text.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') => (rest, true),
            Some(_) => {
                return Err(NotAName(
                    "a star stands for the first labels: *.example.org",
                ));
            }
            None => (text, false),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let labels = if wildcard {
            name.strip_prefix('.').unwrap_or_default()
        } else {
            name
        };
        if name.len() > LONGEST_BYTES {
            return Err(NotAName("it is longer than 253 characters"));
        }
        if labels.contains('*') {
            return Err(NotAName(
                "a star stands for the first labels: *.example.org",
            ));
        }
        if labels.contains(':') && labels.rsplit(':').next().is_some_and(is_number) {
            return Err(NotAName("leave out the port: a name matches on any port"));
        }
        if labels
            .split('.')
            .any(|label| label.is_empty() || label.len() > 63)
        {
            return Err(NotAName("each part between dots has 1 to 63 characters"));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !labels.bytes().all(allowed) {
            return Err(NotAName(
                "use letters, digits, dots and hyphens; write an international name as xn--...",
            ));
        }
        Ok(Self {
            text: name.to_ascii_lowercase(),
            wildcard,
        })
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*" } else { "" }, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().expect(text)
    }

    #[test]
    fn names_match_exactly_or_below_a_star() {
        for (text, name, matches) in [
            ("example.org", "example.org", true),
            ("example.org", "EXAMPLE.org.", true),
            ("Example.ORG.", "example.org", true),
            ("example.org", "www.example.org", false),
            ("*.example.org", "www.example.org", true),
            ("*.example.org", "a.b.example.org", true),
            ("*.example.org", "example.org", false),
            ("*.example.org", ".example.org", false),
            ("*.example.org", "badexample.org", false),
            ("*.example.org", "\u{e4}.example.org", true),
            ("*.example.org", "", false),
        ] {
            assert_eq!(pattern(text).matches(name), matches, "{text} {name}");
        }
    }

    #[test]
    fn a_text_that_is_no_name_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "*example.org",
            "www.*.org",
            "a..b",
            "a b",
            "ex\u{e4}mple.org",
            "example.org:443",
        ] {
            assert!(text.parse::<NamePattern>().is_err(), "{text}");
        }
    }
}
