//! Why connections are not redirected, in words, by the sequence numbers of the connections: for the status of any process.

use std::path::Path;

use splice_base::error::Result;
use splice_bpf::Map;
use splice_bpf::types::BypassKey;

/// The most bytes of a text.
const BYTES: usize = 192;

/// The name of the map and of its pin.
pub(super) const WORDS: &str = "words";

/// A text for each connection that has one.
#[derive(Debug)]
pub(super) struct Words(Map);

impl Words {
    pub(super) fn create(path: &Path, connections: u32) -> Result<Self> {
        let mut map = Map::create::<BypassKey, [u8; BYTES]>("bypass_words", connections)?;
        map.pin(path)?;
        Ok(Self(map))
    }

    pub(super) fn open(path: &Path) -> Result<Self> {
        Map::open(WORDS, path).map(Self)
    }

    pub(super) fn get(&self, key: BypassKey) -> Option<String> {
        let bytes: [u8; BYTES] = self.0.read(&key)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(BYTES)]);
        Some(text.into_owned())
    }

    pub(super) fn set(&self, key: BypassKey, text: &str) {
        let mut bytes = [0; BYTES];
        let boundaries = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        let end = boundaries.take_while(|at| *at <= BYTES).last().unwrap_or(0);
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        // Without room the number of the reason has to do.
        let _ = self.0.update(&key, &bytes);
    }

    pub(super) fn remove(&self, key: BypassKey) {
        self.0.remove(&key);
    }

    /// Removes the texts of connections that are gone.
    pub(super) fn keep(&self, is_there: impl Fn(BypassKey) -> bool) {
        for key in self.0.keys::<BypassKey>() {
            if !is_there(key) {
                self.0.remove(&key);
            }
        }
    }
}
