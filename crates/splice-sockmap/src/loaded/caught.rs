//! Links of connections that a program has caught.

use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::{Admission, admission_stage};
use splice_bpf::{Program, SocketMap, load, objects};

use super::{Loaded, OVERTAKEN, Place, SETTING_SECTION, linked_already, lock};
use crate::key::Cookie;
use crate::map::{explained, refusal};
use crate::socket_kind::SocketKind;

impl Loaded {
    /// The program that links caught connections of these maps.
    pub(crate) fn admitter(&self, caught: &SocketMap) -> Result<Program> {
        let object = load("admit", objects::ADMIT, |opened| {
            opened.set_constant(SETTING_SECTION, &self.setting)?;
            opened.resize("caught", caught.entries())?;
            opened.share("caught", caught)?;
            for (name, map) in [("sources", &self.sources), ("targets", &self.targets)] {
                opened.retype(name, self.plan.map_type)?;
                opened.resize(name, self.plan.entries)?;
                opened.share(name, map)?;
            }
            opened.resize("redirections", self.plan.entries)?;
            opened.share("redirections", &self.redirections)
        })
        .map_err(|error| explained(&error))?;
        object.program("admit")
    }

    /// The same as `add` for caught TCP connections.
    pub(crate) fn add_caught(&self, admitter: &Program, source: u64, target: u64) -> Result<Place> {
        let _one = lock(&self.adding);
        if self.redirection(source).is_some() {
            return Err(linked_already());
        }
        let place = Place {
            key: source,
            slot: self.take_slot()?,
        };
        let noted = self.note(place, SocketKind::Tcp, SocketKind::Tcp, Cookie(target));
        let admitted = noted.and_then(|()| {
            let question = Admission {
                source,
                target,
                slot: place.slot,
                is_received: (!self.plan.redirect.is_of_sent()).into(),
                ..Admission::default()
            };
            let answer = admit(admitter, &question)?;
            if answer.stage == admission_stage::WITHDRAWN && self.has_moved(place) {
                let is_resumed = 1;
                admit(
                    admitter,
                    &Admission {
                        is_resumed,
                        ..question
                    },
                )?;
                // If the source is not a member now, its link has ended with it.
                return Ok(());
            }
            verdict(answer)
        });
        let admitted = admitted.and_then(|()| self.aim(place));
        if admitted.is_err() {
            self.remove(place);
        }
        admitted.map(|()| place)
    }
}

fn admit(admitter: &Program, question: &Admission) -> Result<Admission> {
    let answer = admitter.run(question);
    answer.map_err(|errno| Error::system("cannot link", errno))
}

/// What the answer to an admission means.
fn verdict(answer: Admission) -> Result<()> {
    let refused = |what: &'static str| Err(Error::new(ErrorKind::System, what));
    // Made where there is an error: rustix takes no 0 for one.
    let errno = || Errno::from_raw_os_error(answer.error.cast_signed());
    match answer.stage {
        admission_stage::DONE => Ok(()),
        admission_stage::NO_TARGET => refused("the target was not caught, or has been closed"),
        admission_stage::NO_SOURCE => refused("the source was not caught, or has been closed"),
        admission_stage::NOT_ACCEPTED => {
            refused("nobody has accepted the target yet: try again when its process has")
        }
        admission_stage::BYTES_WAIT | admission_stage::WITHDRAWN => {
            refused("the source has bytes that came before the link, which its process has to read")
        }
        admission_stage::UNREAD => refused(OVERTAKEN),
        admission_stage::TARGET_REFUSED => {
            Err(refusal(SocketKind::Tcp, errno()).about("the target"))
        }
        _ => Err(refusal(SocketKind::Tcp, errno()).about("the source")),
    }
}
