//! Every reader, as the fuzzer and the replay of its corpus see it.

use splice_route::proxy_protocol::{HeaderReader, OutTlvs, header_v2};
use splice_route::socks::{Negotiation, Step};
use splice_route::{
    Arrival, ClientHelloReader, Conditions, Decision, Inspection, Progress, Protocol,
    RequestHeadReader, ServerName, Waiting, connect,
};

/// Gives a reader all that has come, and tells what it answers.
type Read = Box<dyn FnMut(&[u8]) -> Progress<String>>;

/// A corpus under `tests/corpus`, and how to make its reader.
type Entry = (&'static str, fn() -> Read);

/// A new reader whose message is compared by what `Debug` writes of it.
macro_rules! reader {
    ($new:expr) => {
        || {
            let mut reader = $new;
            Box::new(move |come| reader.read(come).map(|message| format!("{message:?}")))
        }
    };
}

/// Each reader. Small limits are reached sooner.
pub(crate) const READERS: &[Entry] = &[
    ("client-hello", reader!(ClientHelloReader::new(2048))),
    ("connect", reader!(connect::RequestReader::new(2048))),
    ("inspection", || Box::new(inspect(Inspection::new(2048)))),
    ("proxy-header", || Box::new(pass_on(HeaderReader::new()))),
    ("request-head", reader!(RequestHeadReader::new(2048))),
    ("socks", || Box::new(negotiate(Negotiation::new()))),
];

/// Routes of each kind before one that takes everything, and what they make of a client whose time is up. No
/// answer to the client is asked for, since it would depend on the cuts.
fn inspect(mut inspection: Inspection) -> impl FnMut(&[u8]) -> Progress<String> {
    let of_protocol = |protocol| Conditions {
        protocol: Some(protocol),
        ..Conditions::default()
    };
    let host = Conditions {
        http_hosts: Some(vec!["*.example.org".parse().expect("a name")]),
        ..Conditions::default()
    };
    let name = Conditions {
        sni: Some(vec![ServerName::None]),
        ..Conditions::default()
    };
    let routes = [
        of_protocol(Protocol::Connect),
        host,
        name,
        of_protocol(Protocol::Socks),
        of_protocol(Protocol::Rdp),
        Conditions::default(),
    ];
    let arrival = Arrival {
        client: None,
        local: None,
    };
    move |come| {
        for waiting in [Waiting::TimedOut, Waiting::Ended] {
            let decision = Inspection::new(2048).decide(&routes, &arrival, come, waiting);
            assert!(
                matches!(decision, Decision::Route(_) | Decision::Reset(_)),
                "{waiting:?}: {decision:?}"
            );
        }
        match inspection.decide(&routes, &arrival, come, Waiting::ForMore) {
            Decision::More => Progress::More,
            last => Progress::Complete(format!("{last:?}")),
        }
    }
}

/// A header whose fields are passed on in one of our own.
fn pass_on(mut reader: HeaderReader) -> impl FnMut(&[u8]) -> Progress<String> {
    move |come| {
        reader.read(come).map(|header| {
            let endpoints = header.endpoints(None, |_| Some(false)).ok().flatten();
            let tlvs = OutTlvs {
                unique_id: Some(b"made"),
                received: Some(header.tlvs()),
                ..OutTlvs::default()
            };
            // Without endpoints they are those of the connection itself.
            let here = "192.0.2.1:443".parse().expect("an address");
            let source = endpoints.map_or(here, |it| it.source);
            let destination = endpoints.map_or(here, |it| it.destination);
            let written =
                header_v2(Some(source), Some(destination), &tlvs).expect("room for what is ours");
            let Progress::Complete(read) = HeaderReader::new().read(&written) else {
                panic!("it is not read: {}", written.escape_ascii());
            };
            let came = header.tlvs().get(5).filter(|id| !id.is_empty());
            // The first may be empty, and a second one not.
            assert!(
                came.is_none() || read.tlvs().get(5) == came,
                "{header:?} {read:?}"
            );
            assert!(read.tlvs().get(5).is_some(), "{header:?} {read:?}");
            format!("{header:?} {read:?}")
        })
    }
}

/// A negotiation whose client does not wait for replies.
fn negotiate(mut negotiation: Negotiation) -> impl FnMut(&[u8]) -> Progress<String> {
    move |come| {
        loop {
            match negotiation.step(come) {
                Step::More => return Progress::More,
                Step::Reply(_) => {}
                last @ (Step::Connect { .. } | Step::Refuse(..)) => {
                    return Progress::Complete(format!("{last:?}"));
                }
            }
        }
    }
}

/// Panics if the reader does, if its answer depends on how `input` is cut, or if an answer other than
/// "more" changes later.
pub(crate) fn check(new: fn() -> Read, input: &[u8]) {
    let whole = new()(input);
    // The cuts are other ones for each input, and the same at every run.
    let seed = input.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    for longest_step in [1, 2, 40] {
        let mut read = new();
        let mut random = seed;
        let mut last = Progress::More;
        let mut come = 0;
        loop {
            let progress = read(&input[..come]);
            assert!(
                last == Progress::More || last == progress,
                "after {come} bytes {last:?} became {progress:?}"
            );
            last = progress;
            if come == input.len() {
                break;
            }
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let step = 1 + usize::from((random >> 48) as u16) % longest_step;
            come = input.len().min(come + step);
        }
        assert_eq!(last, whole, "in steps of at most {longest_step} bytes");
    }
}
