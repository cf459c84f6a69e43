//! Whether a TLS hello offers what a route asks for.

use super::hello::ClientHello;
use crate::conditions::{Conditions, ServerName};

impl ClientHello {
    /// Whether the hello meets the conditions on it: `sni`, `alpn` and `tls_versions`, if given.
    pub fn meets(&self, conditions: &Conditions) -> bool {
        let sni = conditions.sni.as_ref();
        let alpn = conditions.alpn.as_ref();
        let versions = conditions.tls_versions.as_ref();
        sni.is_none_or(|names| names.iter().any(|name| self.asks_for(name)))
            && alpn.is_none_or(|names| names.iter().any(|name| self.offers(name)))
            && versions.is_none_or(|versions| versions.contains(&self.newest_version()))
    }

    /// Whether the server name is what `rule` says.
    pub fn asks_for(&self, rule: &ServerName) -> bool {
        match (rule, self.server_name()) {
            (ServerName::None, name) => name.is_none(),
            (ServerName::Matching(_), None) => false,
            (ServerName::Matching(pattern), Some(name)) => pattern.matches(name),
        }
    }

    /// Whether the client offers the application protocol `name`. Case matters (RFC 7301).
    pub fn offers(&self, name: &[u8]) -> bool {
        self.alpn().any(|offered| offered == name)
    }
}
