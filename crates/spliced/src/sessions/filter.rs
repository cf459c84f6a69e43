//! Which sessions somebody wants to see.

use super::Row;
use crate::session_filter::{SessionField, SessionFilter};

impl SessionFilter {
    /// Whether a session has the value.
    pub(crate) fn takes(&self, row: &Row) -> bool {
        let phase = row.phase.word();
        let field = match self.field {
            SessionField::Listener => Some(&*row.listener),
            SessionField::Client => Some(&*row.client),
            SessionField::ServerName => row.server_name.as_deref(),
            SessionField::Backend => row.backend.as_deref(),
            SessionField::Server => row.server.as_deref(),
            SessionField::Target => Some(&*row.target),
            SessionField::Phase => Some(phase),
            SessionField::Engine => row.engine.as_deref(),
        };
        let is_address = matches!(
            self.field,
            SessionField::Client | SessionField::Server | SessionField::Target
        );
        field.is_some_and(|field| field == self.value || is_address && host(field) == self.value)
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
        let row = Row::example(1);
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
            (SessionField::ServerName, "", false),
            (SessionField::Backend, "b", true),
            (SessionField::Phase, "half-closed", true),
            (SessionField::Engine, "pipe", false),
        ] {
            assert_eq!(takes(field, value), is_taken, "{field:?} {value}");
        }
    }
}
