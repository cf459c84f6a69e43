//! What a relay tells that has one listener, one target and no configuration: of datagrams, SEQPACKET and VSOCK.

use std::sync::Arc;

use anyhow::anyhow;
use serde_json::{Value, json};

use super::facts::Facts;
use super::socket::{AdminSocket, warn_unreachable};
use super::{Question, Request};
use crate::control_args::ControlArgs;

/// Such a relay.
pub(crate) struct Single<C> {
    /// The addresses that it listens on.
    pub(crate) listening: Vec<String>,
    pub(crate) target: String,
    /// The connections or sessions that are open, and how many there were so far.
    pub(crate) counts: C,
}

impl<C: Fn() -> (u64, u64) + Send + Sync + 'static> Single<C> {
    /// Opens its control socket. Without, the relay runs as well.
    pub(crate) fn open(self, control: &ControlArgs) -> (Arc<Facts>, Option<AdminSocket>) {
        let facts = Arc::new(Facts::new("relay", None));
        let of_process = Arc::clone(&facts);
        let ask = move |question: Question| {
            let answer = self.answer(question.request, &of_process);
            // Nobody receives if the client has gone away.
            let _ = question.answer.send(answer);
        };
        let socket = AdminSocket::open(control, Arc::clone(&facts), ask);
        let socket = socket.inspect_err(warn_unreachable).ok();
        (facts, socket)
    }

    fn answer(&self, request: Request, facts: &Facts) -> anyhow::Result<Value> {
        let (open, total) = (self.counts)();
        let listeners = json!([{
            "name": self.listening.first(),
            "addresses": self.listening,
            "connections": open,
            "counts": { "accepted": total },
        }]);
        let backends = json!([{
            "name": self.target,
            "queued": 0,
            "servers": [{
                "server": self.target,
                "state": "not checked",
                "usable": true,
                "since": facts.started(),
                "connections": open,
                "total": total,
            }],
        }]);
        Ok(match request {
            Request::Reload => return Err(anyhow!("there is no configuration to read again")),
            Request::Sessions(_) | Request::Session(_) | Request::Kill(_) => {
                return Err(anyhow!(
                    "a relay of datagrams, SEQPACKET or VSOCK does not list its sessions; 'spliced status' counts them"
                ));
            }
            Request::Order(_) => {
                return Err(anyhow!(
                    "a relay of datagrams, SEQPACKET or VSOCK takes no orders about its target; stop the process instead"
                ));
            }
            Request::Listeners => json!({ "listeners": listeners }),
            Request::Backends => json!({ "backends": backends }),
            Request::Status => json!({
                "process": facts.told(),
                "connections": open,
                "listeners": listeners,
                "backends": backends,
            }),
        })
    }
}
