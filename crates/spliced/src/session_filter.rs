//! Which sessions somebody wants to see.

use std::fmt;

use crate::session_phase::Phase;

/// A field of a session, and the value that it has to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionFilter {
    pub(crate) field: SessionField,
    pub(crate) value: String,
}

/// A field that sessions can be picked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionField {
    Listener,
    Client,
    ServerName,
    Backend,
    Server,
    Target,
    Phase,
    Engine,
}

impl SessionField {
    pub(crate) const ALL: [(&str, Self); 8] = [
        ("listener", Self::Listener),
        ("client", Self::Client),
        ("server_name", Self::ServerName),
        ("backend", Self::Backend),
        ("server", Self::Server),
        ("target", Self::Target),
        ("phase", Self::Phase),
        ("engine", Self::Engine),
    ];

    pub(crate) fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        let named = all.find(|(_, field)| *field == self);
        named.map_or("", |(name, _)| name)
    }
}

impl fmt::Display for SessionFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.field.name(), self.value)
    }
}

impl SessionFilter {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some((name, value)) = text.split_once('=') else {
            return Err("it is not FIELD=VALUE, such as engine=copy".into());
        };
        Self::new(name, value)
    }

    /// # Errors
    /// If there is no such field, or if no session can have the value.
    pub(crate) fn new(name: &str, value: &str) -> Result<Self, String> {
        let Some((_, field)) = SessionField::ALL.iter().find(|(known, _)| *known == name) else {
            let known = SessionField::ALL.map(|(known, _)| known);
            return Err(format!(
                "there is no field {}; the fields are {}",
                name.escape_debug(),
                known.join(", ")
            ));
        };
        if value.is_empty() {
            return Err(format!("{name} has no value; write one behind the ="));
        }
        let phases = Phase::ALL.map(Phase::word);
        if *field == SessionField::Phase && !phases.contains(&value) {
            return Err(format!(
                "there is no phase {}; the phases are {}",
                value.escape_debug(),
                phases.join(", ")
            ));
        }
        Ok(Self {
            field: *field,
            value: value.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_session_can_have_is_refused() {
        for (text, why) in [
            ("engine", "FIELD=VALUE"),
            ("foo=1", "there is no field foo; the fields are listener"),
            ("client=", "client has no value"),
            ("phase=xx", "there is no phase xx; the phases are deciding"),
        ] {
            let refused = SessionFilter::parse(text).expect_err(text);
            assert!(refused.contains(why), "{refused}");
        }
        assert!(SessionFilter::parse("phase=half-closed").is_ok());
    }
}
