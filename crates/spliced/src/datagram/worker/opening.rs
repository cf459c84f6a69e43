//! Opening a session.

use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::Relaying;
use crate::backend::Tried;
use crate::datagram::control::Phase;
use crate::datagram::counters::Flow;
use crate::datagram::outcome::words;
use crate::datagram::routes::{Nowhere, Place};
use crate::datagram::sender::Sender;
use crate::datagram::session::Session;

impl Relaying {
    /// Opens a session for a client, at none of the servers `tried` if there is another one. Returns why there is
    /// none.
    pub(super) fn open(
        &mut self,
        listener: usize,
        client: &Sender,
        tried: &Tried,
        now: Instant,
    ) -> Result<usize, Nowhere> {
        // Counted before `enter`, so that a process that begins to drain in between sees this session; as one of the process only,
        // since there may be none, and then nobody is to make room for it.
        let _opening = self.service.process.connections.acquire_beyond_limit();
        // The thread may not have been woken yet.
        let entered = self.control.enter().map_err(|phase| match phase {
            Phase::Held | Phase::Leaving | Phase::Cut => "the listener takes no more clients",
            _ => "the relay is ending",
        })?;
        // What follows may find that there is no session for this client. So nothing is displaced before.
        let permit = self.permit(client, now)?;
        let place = self.place_or_displace(client, tried)?;
        let counted = self.service.sessions.acquire_beyond_limit();
        self.make_room_of_client(client);
        self.make_room();
        let number = self.sessions.next_number();
        let token = EventData::new_u64(number as u64);
        epoll::add(&self.epoll, place.socket.fd(), token, EventFlags::IN)
            .map_err(|errno| format!("a session cannot be watched: {}", words(errno)))?;
        self.counters.sessions += 1;
        let session = Session {
            id: self.service.next_id(),
            client: client.clone(),
            answers_from: client.own().and_then(|own| self.host.answers_from(own)),
            listener,
            target_takes_trains: place.socket.is_udp(),
            client_takes_trains: self.listeners[listener].is_udp(),
            socket: place.socket,
            target: place.target,
            held: place.held,
            terms: Arc::clone(&self.terms),
            to_target: Flow::default(),
            to_client: Flow::default(),
            is_assured: false,
            longest: 0,
            permit,
            began: now,
            used: now,
            _counted: counted,
            _entered: entered,
        };
        session.began();
        Ok(self.sessions.insert(session, self.client_of(client)))
    }

    /// A place for a new session. Without a free descriptor or port, a socket that rests or another session makes room.
    fn place_or_displace(&mut self, client: &Sender, tried: &Tried) -> Result<Place, Nowhere> {
        let mut has_displaced = false;
        loop {
            match self.place(client, tried) {
                Err(nowhere) if nowhere.is_shortage() && self.resting.close_oldest() => {}
                Err(nowhere) if !has_displaced && self.make_room_for_socket(&nowhere) => {
                    has_displaced = true;
                }
                place => return place,
            }
        }
    }

    /// A place at none of the servers `tried`, if there is another one.
    fn place(&self, client: &Sender, tried: &Tried) -> Result<Place, Nowhere> {
        let routes = &self.terms.routes;
        let terms = &self.terms.sessions;
        match routes.place(client, &mut tried.clone(), terms, &self.closer) {
            // It may be the only one.
            Err(_) if !tried.is_empty() => {
                routes.place(client, &mut Tried::default(), terms, &self.closer)
            }
            place => place,
        }
    }
}
