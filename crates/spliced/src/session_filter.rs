//! Which sessions somebody wants to see.

use std::fmt;

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
    /// If there is no such field.
    pub(crate) fn new(name: &str, value: &str) -> Result<Self, String> {
        match SessionField::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, field)) => Ok(Self {
                field: *field,
                value: value.into(),
            }),
            None => {
                let known = SessionField::ALL.map(|(known, _)| known);
                Err(format!(
                    "there is no field {}; the fields are {}",
                    name.escape_debug(),
                    known.join(", ")
                ))
            }
        }
    }
}
