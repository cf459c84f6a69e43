//! Which sessions somebody wants to see.

use super::Row;
use crate::session_filter::{SessionField, SessionFilter};

impl Row {
    /// What the session has in the field.
    pub(crate) fn text(&self, field: SessionField) -> Option<&str> {
        match field {
            SessionField::Listener => Some(&self.listener),
            SessionField::Client => Some(&self.client),
            SessionField::ServerName => self.server_name.as_deref(),
            SessionField::Backend => self.backend.as_deref(),
            SessionField::Server => self.server.as_deref(),
            SessionField::Target => Some(&self.target),
            SessionField::Phase => Some(self.phase.word()),
            SessionField::Engine => self.engine.as_deref(),
        }
    }
}

impl SessionFilter {
    /// Whether a session has the value.
    pub(crate) fn takes(&self, row: &Row) -> bool {
        let is_address = matches!(
            self.field,
            SessionField::Client | SessionField::Server | SessionField::Target
        );
        let has_address = |text: &str| {
            let address = text.strip_prefix("udp:").unwrap_or(text);
            [address, host(address)].contains(&&*self.value)
        };
        row.text(self.field)
            .is_some_and(|text| text == self.value || is_address && has_address(text))
    }
}

/// An address without its port.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_filter_takes_what_has_its_value() {
        let row = Row {
            server: Some("udp:[::2]:53".into()),
            ..Row::example(1)
        };
        let takes = |field, value: &str| {
            let value = value.into();
            SessionFilter { field, value }.takes(&row)
        };
        for (field, value, is_taken) in [
            (SessionField::Listener, "web", true),
            (SessionField::Listener, "we", false),
            (SessionField::Client, "::1", true),
            (SessionField::Client, "[::1]:4711", true),
            (SessionField::Client, "[::1]:471", false),
            (SessionField::Target, "192.0.2.1", true),
            (SessionField::Target, "udp:192.0.2.1:80", false),
            (SessionField::Server, "udp:[::2]:53", true),
            (SessionField::Server, "[::2]:53", true),
            (SessionField::Server, "::2", true),
            (SessionField::Server, "::3", false),
            (SessionField::ServerName, "", false),
            (SessionField::Backend, "b", true),
            (SessionField::Phase, "half-closed", true),
            (SessionField::Engine, "pipe", false),
        ] {
            assert_eq!(takes(field, value), is_taken, "{field:?} {value}");
        }
    }
}
