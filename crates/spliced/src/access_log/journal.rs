//! The native protocol of the journal (systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram of fields.
//!
//! Each field of a line is one of the journal, with `SPLICED_` before its name, and `MESSAGE` is the line itself. An
//! entry that is too long for a datagram goes into a sealed memfd, whose descriptor is sent.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Map, Value};

use super::socket::Receiver;
use crate::log_sink::LogSink;

#[derive(Debug)]
pub(super) struct Journal(Receiver);

impl Journal {
    pub(super) fn new(socket: &Path) -> Self {
        Self(Receiver::new(socket))
    }
}

impl LogSink for Journal {
    fn ready(&mut self) -> io::Result<()> {
        self.0.connect().map(drop)
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let entry = entry(line.strip_suffix(b"\n").unwrap_or(line));
        self.0.send(|socket| match socket.send(&entry) {
            Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                send_in_file(socket, &entry)
            }
            sent => sent.map(drop),
        })
    }

    fn wait_writable(&self, time: Duration) {
        self.0.wait_writable(time);
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.0.connect().map(drop)
    }
}

/// The entry of the journal for a line of JSON.
fn entry(line: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(3 * line.len());
    // "Informational" (syslog(3)).
    put(&mut entry, "PRIORITY", b"6");
    put(&mut entry, "SYSLOG_IDENTIFIER", b"spliced");
    put(&mut entry, "MESSAGE", line);
    let fields: Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
    for (name, value) in fields {
        let name = format!("SPLICED_{}", name.to_ascii_uppercase());
        match value {
            Value::Null => {}
            Value::String(text) => put(&mut entry, &name, text.as_bytes()),
            other => put(&mut entry, &name, other.to_string().as_bytes()),
        }
    }
    entry
}

/// Adds a field. A value with a newline has its length before it.
fn put(entry: &mut Vec<u8>, name: &str, value: &[u8]) {
    entry.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

/// The journal takes only files that nobody can change any more.
fn send_in_file(socket: &UnixDatagram, entry: &[u8]) -> io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("spliced-access-log", flags)?);
    file.write_all(entry)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    let descriptors = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        socket,
        &[IoSlice::new(&[])],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read as _, Seek as _};

    use netlab::Scratch;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    #[test]
    fn each_field_of_a_line_is_one_of_the_journal() {
        let line = br#"{"id":7,"client":"a\nB=c","engine":null,"duration_ms":1.5}"#;
        let line_text = std::str::from_utf8(line).expect("UTF-8");
        let mut expected =
            format!("PRIORITY=6\nSYSLOG_IDENTIFIER=spliced\nMESSAGE={line_text}\n").into_bytes();
        // In the order of the names, as the map has them. The length is one of 64 bits, the least byte first.
        expected.extend(b"SPLICED_CLIENT\n\x05\0\0\0\0\0\0\0a\nB=c\n");
        expected.extend(b"SPLICED_DURATION_MS=1.5\nSPLICED_ID=7\n");
        let entry = entry(line);
        assert_eq!(
            String::from_utf8_lossy(&entry),
            String::from_utf8_lossy(&expected)
        );
    }

    #[test]
    fn an_entry_that_the_socket_does_not_take_comes_in_a_sealed_file() {
        let scratch = Scratch::new("journal").expect("a directory");
        let path = scratch.path().join("socket");
        let receiver = UnixDatagram::bind(&path).expect("bound");
        let line = format!("{{\"client\":\"{}\"}}", "x".repeat(16 << 20));
        let mut journal = Journal::new(&path);
        journal.append(line.as_bytes()).expect("it is sent");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 1];
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let came = recvmsg(&receiver, &mut slices, &mut control, RecvFlags::empty());
        assert_eq!(came.expect("a message").bytes, 0);
        let Some(RecvAncillaryMessage::ScmRights(mut descriptors)) = control.drain().next() else {
            panic!("no descriptor");
        };
        let mut file = File::from(descriptors.next().expect("one"));
        let seals = rustix::fs::fcntl_get_seals(&file).expect("its seals");
        assert!(
            seals.contains(SealFlags::WRITE | SealFlags::SEAL),
            "{seals:?}"
        );
        let mut text = Vec::new();
        file.rewind().expect("at its start");
        file.read_to_end(&mut text).expect("the entry");
        assert!(text == entry(line.as_bytes()), "{} bytes", text.len());
    }
}
