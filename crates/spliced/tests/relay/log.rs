//! Reading an access log.

use std::fs;

use netlab::Scratch;
use serde_json::Value;

/// The file of one relay's access log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) path: String,
}

impl Log {
    pub(crate) fn below(scratch: &Scratch) -> Self {
        let path = scratch.path().join("access.log");
        Self {
            path: path.display().to_string(),
        }
    }

    /// All entries so far. Every line must become complete: a reader may meet one in the middle of its write(2).
    pub(crate) fn entries(&self) -> Vec<Value> {
        let text = netlab::until_found("every line is complete", || {
            let text = fs::read_to_string(&self.path).expect("the log");
            (text.is_empty() || text.ends_with('\n')).then_some(text)
        });
        entries(&text)
    }
}

/// The entries in `text`, sorted by id. Each line must be one JSON object.
pub(crate) fn entries(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "cut: {text:?}");
    let mut entries: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    assert!(entries.iter().all(Value::is_object));
    entries.sort_by_key(|entry| entry["id"].as_u64());
    entries
}
