//! The frames of a stream, read in user space as the kernel's parser reads them.
//!
//! ```text
//! between frames ──bytes, but not a whole frame──▶ within a frame
//!       ▲  │                                          │   │
//!       │  └──────────an impossible length──▶ fault ◀─┘   │
//!       └───────────────the rest of the frame─────────────┘
//! ```

use super::framing::{Fault, Framing};

/// Finds the frames in a stream that comes in pieces.
///
/// It holds at most one frame, and that only if the frame is not complete.
#[derive(Clone, Debug)]
pub struct FrameReader {
    framing: Framing,
    /// The beginning of a frame that is not complete; empty between frames.
    partial: Vec<u8>,
    fault: Option<Fault>,
}

impl FrameReader {
    /// At the beginning of a stream.
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            partial: Vec::new(),
            fault: None,
        }
    }

    /// Takes the next bytes of the stream, and calls `each` with every frame that is now complete.
    ///
    /// # Errors
    /// The length that no frame can have. Nothing says where the next frame begins, so all later bytes are dropped,
    /// and each later call returns the same error.
    pub fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), Fault> {
        while self.fault.is_none() && !bytes.is_empty() {
            let step = if self.partial.is_empty() {
                self.begin(&mut bytes, &mut each)
            } else {
                self.go_on(&mut bytes, &mut each)
            };
            self.fault = step.err();
        }
        if self.partial.is_empty() || self.fault.is_some() {
            // A stream that has nothing under way holds no memory.
            self.partial = Vec::new();
        }
        self.fault.map_or(Ok(()), Err)
    }

    /// Whether the stream stands within a frame.
    pub fn is_within_frame(&self) -> bool {
        !self.partial.is_empty()
    }

    /// One step between two frames, without a copy if the next one is whole.
    fn begin(&mut self, bytes: &mut &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), Fault> {
        match self.framing.measure(bytes, 0)? {
            Some(whole) if whole <= bytes.len() => {
                let (frame, rest) = bytes.split_at(whole);
                each(frame);
                *bytes = rest;
            }
            _ => self.partial.extend_from_slice(std::mem::take(bytes)),
        }
        Ok(())
    }

    /// One step within a frame: up to the end of its header, or to its own.
    fn go_on(&mut self, bytes: &mut &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), Fault> {
        let framing = self.framing;
        let before = self.partial.len();
        let header = framing.header_bytes() as usize;
        let missing = if before < header {
            header - before
        } else if let Some(delimiter) = framing.delimiter() {
            let end = bytes.iter().position(|byte| *byte == delimiter);
            let most = framing.most_bytes() as usize - before;
            end.map_or(bytes.len(), |at| at + 1).min(most)
        } else {
            let whole = framing.measure(&self.partial, 0)?.unwrap_or(header);
            self.partial.reserve_exact(whole - before);
            whole - before
        };
        let (part, rest) = bytes.split_at(missing.min(bytes.len()));
        self.partial.extend_from_slice(part);
        *bytes = rest;
        if framing.measure(&self.partial, before)? == Some(self.partial.len()) {
            each(&self.partial);
            self.partial.clear();
        }
        Ok(())
    }
}
