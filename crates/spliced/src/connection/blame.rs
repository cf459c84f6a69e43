//! What an attempt that has failed says: to the log, and about the server.

use rustix::io::Errno;

use super::record::Record;
use super::{BACKLOG_FULL, Connection};
use crate::backend::Backend;
use crate::connect_error::{NO_WAY, told};
use crate::plan::Source;
use crate::resource_limit::words;

impl Connection {
    /// Where this host was short of something, what the addresses have met beside that says little.
    pub(super) fn tell_shortage(&mut self) {
        let shortage = self.attempt.as_ref().and_then(|attempt| attempt.shortage);
        self.last_error = shortage.or(self.last_error);
    }

    /// What the last attempt has met.
    pub(super) fn last_words(&self) -> Option<String> {
        self.last_error.map(|errno| match errno {
            Errno::AGAIN => BACKLOG_FULL.into(),
            errno => told(errno, self.last_kind),
        })
    }

    /// The attempt has failed. That counts against the server, if it says something about it.
    pub(super) fn blame(&self, why: &str) {
        let Some(attempt) = &self.attempt else {
            return;
        };
        let Some(place) = &attempt.place else {
            return;
        };
        if attempt.addresses.is_empty() {
            // Its name says nothing about the server.
            return;
        }
        match attempt.shortage {
            Some(errno) => place.lease.could_not_be_tried(&words(errno)),
            None if attempt.met_refusal => place.lease.failed(why),
            None if attempt.was_reset => {}
            None => place.lease.could_not_be_tried(NO_WAY),
        }
    }

    /// The server has reset the connection before its first byte.
    pub(super) fn report_reset(&mut self) {
        let client = self.record.as_ref().and_then(Record::client_ip);
        if let Some(attempt) = &mut self.attempt
            && let Some(place) = &attempt.place
        {
            attempt.was_reset = true;
            place.lease.reset_before_first_byte(client);
        }
    }

    /// What may have kept a server of `backend` from answering, if one was tried.
    pub(super) fn hint(&self, backend: &Backend) -> &'static str {
        let is_silent = matches!(self.last_error, None | Some(Errno::TIMEDOUT));
        let plan = backend.plan();
        if self.last_error == Some(Errno::CONNREFUSED) && plan.is_of_vsock() {
            return "; nothing listens there, as far as this network namespace reaches; since Linux 7.0 one can have VSOCK \
                    ports of its own (net.vsock.ns_mode)";
        }
        match plan.source {
            Source::Client if is_silent => {
                "; its answers to the client's address may not come back to this host, which 'spliced check' \
                 examines"
            }
            _ => "",
        }
    }
}
