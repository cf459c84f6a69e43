//! How the servers of a backend are checked.

use crate::plan::{BackendPlan, Check};
use crate::printable::printable;

/// `None` if there is nothing to say.
pub(super) fn told(backend: &BackendPlan) -> Option<String> {
    let Some(health) = &backend.health else {
        return (backend.is_of_datagrams())
            .then(|| "not checked: a server that is silent counts as up".into());
    };
    let by: String = match &health.check {
        Check::Tcp => "a connection".into(),
        Check::Exchange { .. } => "send and expect".into(),
        Check::Datagram { expect, .. } => match expect {
            Some(_) => "send and expect".into(),
            None => "send, which nothing is to refuse".into(),
        },
        Check::Tls { .. } => "a TLS hello".into(),
        Check::Http { path, .. } => format!("GET {}", printable(path)),
    };
    Some(format!(
        "checked every {} by {by}; down after {} that fail, up after {} that pass",
        humantime::format_duration(health.every),
        health.fall,
        health.rise
    ))
}
