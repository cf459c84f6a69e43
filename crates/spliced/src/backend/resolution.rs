//! A name that one client asks for.

use std::net::{IpAddr, SocketAddr};

use tokio::sync::oneshot::{self, error::TryRecvError};

use super::Control;

/// The addresses of a name, or why there are none.
pub(super) type Answer = Result<Vec<SocketAddr>, String>;

/// A question that the control thread waits for. Dropped, it ends, so that clients that come and go leave
/// nothing behind.
#[derive(Debug)]
pub(crate) struct Resolution(oneshot::Receiver<Answer>);

impl Resolution {
    /// Asks for the addresses of `name` in the name of `client`, and calls `wake` when there is an answer.
    pub(crate) fn start(
        control: &Control,
        client: Option<IpAddr>,
        name: String,
        port: u16,
        wake: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (mut sender, receiver) = oneshot::channel();
        let names = control.names();
        control.spawn(async move {
            let found = tokio::select! {
                () = sender.closed() => return,
                found = names.addresses(client, &name) => found,
            };
            let found = found.map(|addresses| names.in_order(&name, port, &addresses));
            if sender.send(found).is_ok() {
                wake();
            }
        });
        Self(receiver)
    }

    /// The answer, once it is there.
    pub(crate) fn take(&mut self) -> Option<Answer> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err("the process is ending".into())),
        }
    }
}
