//! What a relay tells that has one listener, one target and no configuration: of datagrams. Its
//! threads keep their sessions to themselves.

use std::sync::Arc;

use anyhow::anyhow;
use serde_json::{Value, json};

use super::facts::Facts;
use super::socket::{AdminSocket, warn_unreachable};
use super::{Question, Request};
use crate::control_args::ControlArgs;
use crate::diagnostics::Diagnostics;
use crate::metrics::{Counts, Metrics};
use crate::sessions::Survey;

/// Such a relay.
pub(crate) struct Single<C, A> {
    /// The addresses that it listens on.
    pub(crate) listening: Vec<String>,
    pub(crate) target: String,
    /// Counts its connections or sessions.
    pub(crate) counts: C,
    /// Puts a question to every thread that has sessions.
    pub(crate) ask: A,
}

impl<C, A> Single<C, A>
where
    C: Fn() -> Counts + Clone + Send + Sync + 'static,
    A: Fn(&Arc<Survey>) + Send + Sync + 'static,
{
    /// Opens its control socket. Without, the relay runs as well.
    pub(crate) fn open(
        self,
        control: &ControlArgs,
        diagnostics: &Diagnostics,
    ) -> (Arc<Facts>, Option<AdminSocket>) {
        let facts = Arc::new(Facts::new("relay", None));
        let of_process = Arc::clone(&facts);
        let listener = self.listening.first().cloned().unwrap_or_default();
        let metrics = Metrics::of_single(listener, self.counts.clone());
        let diagnostics = diagnostics.clone();
        let ask = move |Question {
                            request,
                            by,
                            answer,
                        }: Question| {
            let told = match request {
                Request::Sessions(about) => return (self.ask)(&Survey::new(about, answer)),
                Request::Order(_) => Err(anyhow!(
                    "a relay of datagrams takes no orders about its target; stop the process instead"
                )),
                Request::Drain(_) | Request::Undrain(_) => Err(anyhow!(
                    "a relay of datagrams does not drain its listener; stop the process instead"
                )),
                Request::Log(wanted) => diagnostics.answer(wanted, &by),
                Request::Reload => Err(anyhow!("there is no configuration to read again")),
                Request::Listeners => Ok(json!({ "listeners": self.listeners(&of_process) })),
                Request::Backends => Ok(json!({ "backends": self.backends(&of_process) })),
                Request::Status => Ok(json!({
                    "connections": (self.counts)().open,
                    "listeners": self.listeners(&of_process),
                    "backends": self.backends(&of_process),
                })),
            };
            // Nobody receives if the client has gone away.
            let _ = answer.send(told);
        };
        let socket = AdminSocket::open(control, Arc::clone(&facts), metrics, ask);
        let socket = socket.inspect_err(warn_unreachable).ok();
        (facts, socket)
    }

    fn listeners(&self, facts: &Facts) -> Value {
        let counts = (self.counts)();
        json!([{
            "name": self.listening.first(),
            "addresses": self.listening,
            "state": "listening",
            "since": facts.started(),
            "connections": counts.open,
            "counts": { "accepted": counts.accepted, "joined": counts.joined },
        }])
    }

    fn backends(&self, facts: &Facts) -> Value {
        let counts = (self.counts)();
        json!([{
            "name": self.target,
            "queued": 0,
            "servers": [{
                "server": self.target,
                "state": "not checked",
                "usable": true,
                "since": facts.started(),
                "connections": counts.open,
                "total": counts.accepted,
            }],
        }])
    }
}
