//! What holds for every reader, whatever comes: it does not panic, cuts do not change its answer, and an
//! answer is final unless it asks for more.
//!
//! An input that once broke a reader becomes a file in `tests/corpus/READER/`, and is tried ever after.

use splice_route::proxy_protocol::HeaderReader;
use splice_route::socks::{Negotiation, Step};
use splice_route::{ClientHelloReader, Progress, RequestHeadReader};

use super::random::Random;
use super::{directory, files};

/// Reads all bytes so far, as the readers do. What is complete is shown as text.
type Read = Box<dyn FnMut(&[u8]) -> Progress<String>>;

struct Subject {
    /// Of the directory below `tests/corpus`.
    name: &'static str,
    /// A directory with more inputs: what real clients send.
    clients: &'static str,
    new: fn() -> Read,
}

/// No longer than it has to be for what real clients send: so it is reached sooner.
const LIMIT_BYTES: usize = 3000;

/// A new reader, whose message is shown as `Debug` writes it.
macro_rules! reader {
    ($new:expr) => {
        || {
            let mut reader = $new;
            Box::new(move |bytes| reader.read(bytes).map(|message| format!("{message:?}")))
        }
    };
}

#[rustfmt::skip]
const SUBJECTS: [Subject; 4] = [
    Subject { name: "client-hello", clients: "hellos", new: reader!(ClientHelloReader::new(LIMIT_BYTES)) },
    Subject { name: "proxy-header", clients: "proxy_senders", new: reader!(HeaderReader::new()) },
    Subject { name: "request-head", clients: "clients", new: reader!(RequestHeadReader::new(LIMIT_BYTES)) },
    Subject { name: "socks", clients: "clients", new: || Box::new(negotiate(Negotiation::new())) },
];

/// Negotiates to the end, as if the client had not waited for replies.
fn negotiate(mut negotiation: Negotiation) -> impl FnMut(&[u8]) -> Progress<String> {
    move |bytes| {
        loop {
            match negotiation.step(bytes) {
                Step::More => return Progress::More,
                Step::Reply(_) => {}
                last @ (Step::Connect { .. } | Step::Refuse(..)) => {
                    return Progress::Complete(format!("{last:?}"));
                }
            }
        }
    }
}

impl Subject {
    fn inputs(&self) -> Vec<Vec<u8>> {
        let corpus = directory("corpus").join(self.name);
        let files = [files(&corpus), files(&directory(self.clients))].concat();
        files.into_iter().map(|(_, bytes)| bytes).collect()
    }

    fn check(&self, bytes: &[u8], random: &mut Random) {
        let whole = (self.new)()(bytes);
        let mut byte_by_byte = (self.new)();
        let mut previous = Progress::More;
        let fresh_at = random.below(bytes.len());
        for end in 0..=bytes.len() {
            let answer = byte_by_byte(&bytes[..end]);
            if previous != Progress::More {
                assert_eq!(answer, previous, "a final answer changed at {end}");
            }
            if end == fresh_at {
                assert_eq!((self.new)()(&bytes[..end]), answer, "up to {end}");
            }
            previous = answer;
        }
        assert_eq!(previous, whole, "byte by byte");
        let mut in_pieces = (self.new)();
        let mut end = 0;
        while end < bytes.len() {
            end += 1 + random.below(bytes.len() - end);
            previous = in_pieces(&bytes[..end]);
        }
        assert_eq!(previous, whole, "in pieces");
    }

    fn soak(&self, rounds: usize, seed: u64) {
        let mut random = Random::new(seed);
        let inputs = self.inputs();
        for _ in 0..rounds {
            let mut bytes = inputs[random.below(inputs.len())].clone();
            let other = &inputs[random.below(inputs.len())];
            random.mutate(&mut bytes, other);
            // It is shown only if the check fails.
            let shown = Shown(self.name, &bytes);
            self.check(&bytes, &mut random);
            drop(shown);
        }
    }
}

/// Says on a panic with which input it was.
struct Shown<'a>(&'static str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(name, bytes) = self;
            eprintln!("the input of {name} was b\"{}\"", bytes.escape_ascii());
        }
    }
}

#[test]
fn readers_keep_their_word_for_every_input_of_the_corpus() {
    for subject in SUBJECTS {
        let inputs = subject.inputs();
        assert!(!inputs.is_empty(), "{}", subject.name);
        for bytes in inputs {
            let shown = Shown(subject.name, &bytes);
            subject.check(&bytes, &mut Random::new(1));
            drop(shown);
        }
    }
}

#[test]
fn every_corpus_has_a_reader() {
    for entry in std::fs::read_dir(directory("corpus")).unwrap() {
        let path = entry.unwrap().path();
        let known = SUBJECTS.iter().any(|subject| path.ends_with(subject.name));
        assert!(known, "{}", path.display());
    }
}

#[test]
fn readers_keep_their_word_for_some_mutations() {
    for subject in SUBJECTS {
        subject.soak(500, 1);
    }
}

#[test]
#[ignore = "soak: a hundred times as many mutations as the test above, others each time"]
fn readers_keep_their_word_for_many_mutations() {
    for subject in SUBJECTS {
        subject.soak(50_000, Random::any_seed());
    }
}
