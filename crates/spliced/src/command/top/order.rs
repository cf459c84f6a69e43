//! What a person has a process do.

use hyper::Method;

use super::super::processes::Of;
use crate::admin::path_of_server;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) of: Of,
    /// Another process may have the same number and socket later.
    pub(super) started: String,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The session with this id ends.
    End(u64),
    Change(Place, Change),
}

/// A server of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) backend: String,
    pub(super) server: String,
}

/// What becomes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Drain,
    Undrain,
    Weigh(u16),
}

impl Order {
    /// The whole name of what it is about.
    pub(super) fn name(&self) -> String {
        let process = self.of.process();
        match &self.what {
            What::End(id) => format!("session {id} of process {process}"),
            What::Change(Place { backend, server }, _) => {
                format!("server {server} of backend {backend} in process {process}")
            }
        }
    }
}

impl What {
    /// What is asked of the process.
    pub(super) fn request(&self) -> (Method, String) {
        let (place, change) = match self {
            Self::End(id) => return (Method::DELETE, format!("/v1/sessions/{id}")),
            Self::Change(place, change) => (place, change),
        };
        let (method, act) = match change {
            Change::Drain => (Method::POST, "drain".into()),
            Change::Undrain => (Method::POST, "undrain".into()),
            Change::Weigh(weight) => (Method::PUT, format!("weight?weight={weight}")),
        };
        let path = path_of_server(&place.backend, &place.server, &act);
        (method, path)
    }

    /// What it is about.
    pub(super) fn subject(&self) -> String {
        match self {
            Self::End(id) => format!("session {id}"),
            Self::Change(place, _) => format!("server {}", place.server),
        }
    }

    /// What the key does that confirms it.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Self::End(_) => "ends",
            Self::Change(_, Change::Drain) => "drains",
            Self::Change(_, Change::Undrain) => "undrains",
            Self::Change(_, Change::Weigh(_)) => "weighs",
        }
    }

    /// What has come of it, once the process has taken it.
    pub(super) fn done(&self) -> String {
        let subject = self.subject();
        match self {
            Self::End(_) => format!("{subject} is being ended"),
            Self::Change(_, Change::Drain) => {
                format!("{subject} gets no new clients; those that it has go on")
            }
            Self::Change(_, Change::Undrain) => format!("{subject} is no longer drained"),
            Self::Change(_, Change::Weigh(weight)) => {
                format!("{subject} has the weight {weight} now")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_path_stays_one_part_of_it() {
        let place = Place {
            backend: "a/b ?".into(),
            server: "[::1]:80".into(),
        };
        for (change, method, act) in [
            (Change::Drain, Method::POST, "drain"),
            (Change::Undrain, Method::POST, "undrain"),
            (Change::Weigh(256), Method::PUT, "weight?weight=256"),
        ] {
            let path = format!("/v1/backends/a%2Fb%20%3F/servers/[::1]:80/{act}");
            let what = What::Change(place.clone(), change);
            assert_eq!(what.request(), (method, path));
        }
    }
}
