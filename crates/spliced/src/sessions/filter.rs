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
            SessionField::Listener
                | SessionField::Client
                | SessionField::Backend
                | SessionField::Server
                | SessionField::Target
        );
        // Of UDP it may have its kind or not. Listeners and backends may have addresses for names.
        let has_address = |text: &str| {
            let tcp = text.strip_prefix("udp:").unwrap_or(text);
            tcp == self.value || [text, tcp].map(host).contains(&Some(&*self.value))
        };
        row.text(self.field)
            .is_some_and(|text| text == self.value || is_address && has_address(text))
    }
}

/// The host of an address that has a port.
fn host(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let literal = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    is_port.then(|| literal.unwrap_or(host))
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
        let of_unix = Row {
            listener: "udp:127.0.0.1:53".into(),
            client: "unix:/run/client".into(),
            ..Row::example(1)
        };
        let takes_unix = |field, value: &str| {
            let value = value.into();
            SessionFilter { field, value }.takes(&of_unix)
        };
        assert!(takes_unix(SessionField::Client, "unix:/run/client"));
        assert!(!takes_unix(SessionField::Client, "unix"));
        assert!(takes_unix(SessionField::Listener, "127.0.0.1:53"));
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
            (SessionField::Server, "udp:[::2]", true),
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
