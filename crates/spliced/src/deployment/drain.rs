//! Listeners that take no new clients: their sockets are closed as at the end of the process, so that whoever looks from
//! outside finds nobody there, and their connections go on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use splice::Waker;

use super::{Deployment, Listening};
use crate::admin::NoListener;
use crate::backend::those;
use crate::forwarding::Forwarding;
use crate::socket_address::SocketAddress;

/// Whether a listener takes clients. Shared with whoever ends its last connection.
pub(super) struct Drain(Mutex<State>);

enum State {
    Listening {
        since: SystemTime,
    },
    Drained {
        since: SystemTime,
        /// When an order came; `None` if the process is ending.
        ordered: Option<Instant>,
        /// Since when it has no connection, if it had some.
        empty: Option<SystemTime>,
    },
}

impl Drain {
    pub(super) fn listening() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::listening())))
    }

    /// It takes clients again.
    pub(super) fn end(&self) {
        *self.lock() = State::listening();
    }

    /// It takes no more, by an order.
    fn begin(&self) {
        *self.lock() = State::Drained {
            since: SystemTime::now(),
            ordered: Some(Instant::now()),
            empty: None,
        };
    }

    /// Whether it takes no clients.
    pub(super) fn is_drained(&self) -> bool {
        matches!(*self.lock(), State::Drained { .. })
    }

    /// It takes no more, since the process is ending.
    pub(super) fn begin_to_end(&self) {
        let mut state = self.lock();
        if let State::Listening { .. } = *state {
            *state = State::Drained {
                since: SystemTime::now(),
                ordered: None,
                empty: None,
            };
        }
    }

    /// Its last connection has ended. Returns how long that has taken since the order, once after each.
    pub(super) fn emptied(&self) -> Option<Duration> {
        match &mut *self.lock() {
            State::Drained { ordered, empty, .. } if empty.is_none() => {
                *empty = Some(SystemTime::now());
                ordered.map(|at| at.elapsed())
            }
            _ => None,
        }
    }

    /// The state, and since when it is, with so many connections.
    pub(super) fn told(&self, connections: usize) -> (&'static str, SystemTime) {
        match *self.lock() {
            State::Listening { since } => ("listening", since),
            State::Drained { since, empty, .. } => match connections {
                0 => ("drained", empty.unwrap_or(since)),
                _ => ("draining", since),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn listening() -> Self {
        Self::Listening {
            since: SystemTime::now(),
        }
    }
}

impl Listening {
    /// What it is, and what has been counted.
    fn told(&self) -> Value {
        let service = &self.service;
        let connections = service.connection_limit.count();
        let (state, since) = self.drain.told(connections);
        json!({
            "name": service.terms().plan.name,
            "addresses": self.addresses.iter().map(SocketAddress::to_string).collect::<Vec<_>>(),
            "state": state,
            "since": humantime::format_rfc3339_millis(since).to_string(),
            "connections": connections,
            "counts": service.counts,
        })
    }
}

impl Deployment {
    pub(crate) fn listeners_told(&self) -> Value {
        let of_streams = self.listeners.values().map(Listening::told);
        of_streams.chain(self.datagrams.told()).collect()
    }

    /// Has the listener `name` take no new clients, which was asked for `by` somebody. Those in its backlog are
    /// accepted. Returns what it is then.
    ///
    /// # Errors
    /// If there is no such listener.
    pub(crate) fn drain(&mut self, name: &str, by: &str) -> Result<Value> {
        if let Some(listening) = self.datagrams.named(name) {
            if listening.drain.is_drained() {
                return Ok(listening.told());
            }
            let left = match listening.leave() {
                1 => "1 session goes on".into(),
                count => format!("{count} sessions go on"),
            };
            tracing::info!("listener {name} takes no new clients: drained by {by}; {left}");
            listening.drain.begin();
            listening.when_empty(tell_empty(&listening.drain, name));
            return Ok(listening.told());
        }
        let of_datagrams = self.datagrams.names();
        let listening = named(&mut self.listeners, name, of_datagrams)?;
        let Some(sockets) = listening.sockets.take() else {
            return Ok(listening.told());
        };
        listening.forwarding.iter().for_each(|one| one.drain(true));
        let wakers = std::mem::take(&mut listening.wakers);
        wakers.iter().for_each(Waker::close);
        drop(sockets);
        let (sender, closed) = mpsc::channel();
        for worker in &self.workers {
            let sender = sender.clone();
            worker.when_reached(move || {
                let _ = sender.send(());
            });
        }
        drop(sender);
        // Until no loop has it any more: the count is exact then, and the addresses are free.
        closed.iter().for_each(drop);
        let limit = &listening.service.connection_limit;
        tracing::info!(
            "listener {name} takes no new clients: drained by {by}; {}",
            match limit.count() {
                1 => "1 connection goes on".into(),
                count => format!("{count} connections go on"),
            }
        );
        listening.drain.begin();
        limit.when_none(tell_empty(&listening.drain, name));
        Ok(listening.told())
    }

    /// Has the listener `name` listen again, on the same addresses.
    ///
    /// # Errors
    /// If there is no such listener, or an address cannot be bound. Then it stays drained.
    pub(crate) fn undrain(&mut self, name: &str, by: &str) -> Result<Value> {
        let stays = |why: anyhow::Error| why.context(format!("listener {name} stays drained"));
        if let Some(listening) = self.datagrams.named(name) {
            if !listening.drain.is_drained() {
                return Ok(listening.told());
            }
            self.datagrams.undrain(name).map_err(stays)?;
            tracing::info!("listener {name} takes clients again: undrained by {by}");
            return Ok(self.datagrams.named(name).map(|it| it.told()).into());
        }
        let listening = named(&mut self.listeners, name, self.datagrams.names())?;
        if listening.sockets.is_some() {
            return Ok(listening.told());
        }
        let (service, addresses) = (Arc::clone(&listening.service), listening.addresses.clone());
        let terms = service.terms();
        let mut sockets = self.bind(&terms, addresses.clone()).map_err(stays)?;
        if let Some(lost) = addresses.iter().find(|it| !sockets.addresses.contains(it)) {
            return Err(stays(anyhow!(
                "{lost} is not an address of this host any more; add it, or change the listener"
            )));
        }
        tracing::info!("listener {name} takes clients again: undrained by {by}");
        let wakers = self.listen(&service, &mut sockets);
        let listening = named(&mut self.listeners, name, self.datagrams.names())?;
        match &listening.forwarding {
            Some(forwarding) => forwarding.drain(false),
            None => listening.forwarding = Forwarding::start(&service, &addresses),
        }
        listening.wakers = wakers;
        listening.sockets = Some(sockets);
        listening.drain.end();
        Ok(listening.told())
    }
}

/// What tells that the listener `name` has no connection any more, once after each time that it was drained.
fn tell_empty(drain: &Arc<Drain>, name: &str) -> impl Fn() + Send + Sync + 'static {
    let (drain, name) = (Arc::clone(drain), name.to_owned());
    move || {
        if let Some(after) = drain.emptied() {
            let after = Duration::from_millis(after.as_millis() as u64);
            tracing::info!(
                "listener {name} is empty, {} after it was drained",
                humantime::format_duration(after)
            );
        }
    }
}

fn named<'a, 'n>(
    listeners: &'a mut BTreeMap<String, Listening>,
    name: &str,
    others: impl Iterator<Item = &'n str>,
) -> Result<&'a mut Listening> {
    let name_of = |listening: &Listening| listening.service.terms().plan.name.clone();
    let names = listeners.values().map(name_of);
    let names: Vec<_> = names.chain(others.map(str::to_owned)).collect();
    let mut found = listeners.values_mut().filter(|it| name_of(it) == name);
    found.next().ok_or_else(|| {
        let those = those("listener", names.iter().map(String::as_str));
        // The log has it, too.
        let name = name.escape_debug();
        NoListener(format!("there is no listener {name}; {those}")).into()
    })
}
