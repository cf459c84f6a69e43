//! The tokens that let a client register, one a line of a file.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use subtle::{Choice, ConstantTimeEq as _};

use crate::text_file;

/// The longest token, in bytes: several times a SHA-512 in hexadecimal.
pub(super) const MOST_TOKEN_BYTES: usize = 1024;

/// The longest file, in MiB.
const MOST_MIB: u64 = 1;

pub(super) struct Tokens {
    path: PathBuf,
    valid: Vec<Vec<u8>>,
}

impl Tokens {
    /// # Errors
    /// If the file cannot be read, other users may read it, or it has no token or one that is too long.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let read = || {
            let text = text_file::read_private(path, MOST_MIB)?;
            let lines = text.split(|byte| *byte == b'\n');
            let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
            let valid: Vec<_> = lines
                .filter(|line| !line.is_empty())
                .map(<[u8]>::to_vec)
                .collect();
            if valid.is_empty() {
                bail!("it has no token; write one a line");
            }
            if valid.iter().any(|token| token.len() > MOST_TOKEN_BYTES) {
                bail!("a token has more than {MOST_TOKEN_BYTES} bytes; shorten it");
            }
            Ok(valid)
        };
        let valid =
            read().with_context(|| format!("cannot use the token file {}", path.display()))?;
        Ok(Self {
            path: path.into(),
            valid,
        })
    }

    /// Reads the file again. If that fails, the former tokens stay.
    pub(super) fn read_again(&mut self) {
        match Self::read(&self.path) {
            Ok(read) => {
                tracing::info!("the token file was read again: {} tokens", read.valid.len());
                *self = read;
            }
            Err(error) => tracing::warn!("{error:#}; the tokens from before stay valid"),
        }
    }

    /// Whether `token` is one of them, in a time that tells nothing but the lengths.
    pub(super) fn has(&self, token: &[u8]) -> bool {
        let found = self
            .valid
            .iter()
            .fold(Choice::from(0), |found, valid| found | valid.ct_eq(token));
        found.into()
    }
}

/// The tokens are secrets.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
