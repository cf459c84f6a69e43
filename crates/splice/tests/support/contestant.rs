//! An engine under test, and what the rules need to know about it.

use std::thread;

use splice::{EngineChoice, EngineName, Kind, Options};

use crate::support::mix::Mix;

/// One engine of the suite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contestant {
    pub(crate) choice: EngineChoice,
    /// The most that one direction holds outside of sockets, in bytes.
    pub(crate) in_flight_bytes: usize,
    /// The kinds of socket that it accepts.
    pub(crate) kinds: &'static [Kind],
    pub(crate) takes_byte_limit: bool,
    /// With `auto`: [`Options::segment_after`](splice::Options::segment_after) is not `None`.
    pub(crate) promote_to_segment: bool,
}

const EVERY_KIND: &[Kind] = &[Kind::Tcp4, Kind::Tcp6, Kind::Unix, Kind::Mptcp];

pub(crate) const COPY: Contestant = Contestant {
    choice: EngineChoice::Only(EngineName::Copy),
    in_flight_bytes: 256 << 10,
    kinds: EVERY_KIND,
    takes_byte_limit: true,
    promote_to_segment: true,
};

pub(crate) const PIPE: Contestant = Contestant {
    choice: EngineChoice::Only(EngineName::Pipe),
    in_flight_bytes: 1 << 20,
    ..COPY
};

pub(crate) const AIO: Contestant = Contestant {
    choice: EngineChoice::Only(EngineName::Aio),
    ..COPY
};

pub(crate) const URING: Contestant = Contestant {
    choice: EngineChoice::Only(EngineName::Uring),
    in_flight_bytes: 1 << 20,
    ..COPY
};

pub(crate) const SOCKMAP: Contestant = Contestant {
    choice: EngineChoice::Only(EngineName::Sockmap),
    kinds: &[Kind::Tcp4, Kind::Tcp6],
    ..COPY
};

pub(crate) const AUTO: Contestant = Contestant {
    choice: EngineChoice::Auto,
    ..PIPE
};

/// What pairs cost that stay in user space.
pub(crate) const AUTO_BY_HAND: Contestant = Contestant {
    promote_to_segment: false,
    ..AUTO
};

pub(crate) const SEGMENT: Contestant = Contestant {
    choice: EngineChoice::Only(EngineName::Segment),
    kinds: &[Kind::Tcp4],
    takes_byte_limit: false,
    ..COPY
};

pub(crate) const SEGMENT_V6: Contestant = Contestant {
    kinds: &[Kind::Tcp6],
    ..SEGMENT
};

impl Contestant {
    pub(crate) fn options(&self) -> Options {
        Options {
            engine: self.choice,
            segment_after: Options::default()
                .segment_after
                .filter(|_| self.promote_to_segment),
            ..Options::default()
        }
    }

    /// Whether this machine allows it; `SPLICED_REQUIRE` has it by its name.
    pub(crate) fn is_available(&self) -> bool {
        match self.choice {
            // Linux 7.3 refuses the programs of sockmap.
            EngineChoice::Only(engine @ (EngineName::Uring | EngineName::Sockmap)) => {
                let why = engine.probe().err().map(|error| error.to_string());
                netlab::present(engine.as_str(), why)
            }
            _ => true,
        }
    }

    /// Every ordered pair of kinds that it accepts and this kernel has.
    pub(crate) fn mixes(&self) -> Vec<Mix> {
        Mix::all()
            .into_iter()
            .filter(|mix| self.kinds.contains(&mix.a) && self.kinds.contains(&mix.b))
            .collect()
    }

    /// Calls `run` with each mix, which a failure names.
    pub(crate) fn with_each_mix(&self, mut run: impl FnMut(Mix)) {
        for mix in self.mixes() {
            eprintln!("{}: {mix:?}", self.choice);
            run(mix);
        }
    }

    /// Like [`with_each_mix`](Self::with_each_mix), for slow tests: each kind once as `a` and once
    /// as `b`.
    pub(crate) fn with_each_kind(&self, mut run: impl FnMut(Mix)) {
        for mix in self.each_kind() {
            eprintln!("{}: {mix:?}", self.choice);
            run(mix);
        }
    }

    /// Like [`with_each_kind`](Self::with_each_kind) for what waits long: all at the same time, in threads
    /// of their own.
    pub(crate) fn with_each_kind_at_once(&self, run: impl Fn(Mix) + Sync) {
        thread::scope(|scope| {
            for mix in self.each_kind() {
                let run = &run;
                let thread = thread::Builder::new().name(format!("{mix:?}"));
                let running = thread.spawn_scoped(scope, move || run(mix));
                running.expect("a thread");
            }
        });
    }

    fn each_kind(&self) -> Vec<Mix> {
        let mut kinds: Vec<_> = self.mixes().iter().map(|mix| mix.a).collect();
        kinds.dedup();
        let next = kinds.iter().cycle().skip(1);
        let pairs = kinds.iter().zip(next);
        pairs.map(|(&a, &b)| Mix { a, b }).collect()
    }

    pub(crate) fn uses_pipes(&self) -> bool {
        self.choice == PIPE.choice || self.choice == AUTO.choice
    }
}
