//! Replays what the fuzzer has found worth keeping, and tries mutations of it.

mod oracle;
mod random;
mod readers;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use random::Random;
use readers::{READERS, check};

fn inputs(of: &str) -> Vec<PathBuf> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let directory = corpora.join(of);
    let entries = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    let mut inputs: Vec<_> = entries.map(|entry| entry.expect(of).path()).collect();
    // Else a seed would not repeat its choices.
    inputs.sort();
    inputs
}

#[test]
fn every_reader_takes_its_corpus() {
    for (name, new) in READERS {
        let inputs = inputs(name);
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for path in inputs {
            let input = fs::read(&path).expect(name);
            let checked = catch_unwind(|| check(*new, &input));
            assert!(checked.is_ok(), "{}", path.display());
        }
    }
}

/// What one reader does not take is likely to be odd for the others, too.
#[test]
fn every_reader_takes_the_corpora_of_the_others() {
    let all: Vec<Vec<u8>> = READERS
        .iter()
        .flat_map(|(name, _)| inputs(name))
        .map(|path| fs::read(path).expect("an input"))
        .collect();
    for (_, new) in READERS {
        for input in &all {
            check(*new, input);
        }
    }
}

#[test]
fn every_corpus_has_a_reader() {
    for path in inputs("") {
        let known = READERS.iter().any(|(name, _)| path.ends_with(name));
        assert!(known, "{}", path.display());
    }
}

/// For machines and moments without the fuzzer. It knows lengths, and what the others of a corpus have.
fn mutate(rounds: usize, seed: u64) {
    for (name, new) in READERS {
        let mut random = Random::new(seed);
        let corpus: Vec<_> = inputs(name)
            .iter()
            .map(|path| fs::read(path).expect(name))
            .collect();
        for _ in 0..rounds {
            let mut input = corpus[random.below(corpus.len())].clone();
            let other = &corpus[random.below(corpus.len())];
            random.mutate(&mut input, other);
            let checked = catch_unwind(|| check(*new, &input));
            assert!(checked.is_ok(), "{name}: b\"{}\"", input.escape_ascii());
        }
    }
}

#[test]
fn every_reader_takes_some_mutations_of_its_corpus() {
    mutate(500, 1);
}

#[test]
#[ignore = "soak: a hundred times as many mutations as the test above, others each time"]
fn every_reader_takes_many_mutations_of_its_corpus() {
    mutate(50_000, Random::any_seed());
}
