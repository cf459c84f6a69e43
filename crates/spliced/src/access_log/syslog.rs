//! The messages of RFC 5424, to the syslog daemon of this host.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::socket::Receiver;
use crate::log_sink::LogSink;

/// "Informational" (RFC 5424, table 2).
const SEVERITY: u8 = 6;

/// What every receiver should take (RFC 5424, 6.1). A message that the socket does not take is cut there.
const LONGEST_CUT_BYTES: usize = 2048;

/// The longest name of a host in a message (RFC 5424, 6).
const LONGEST_HOST_BYTES: usize = 255;

#[derive(Debug)]
pub(super) struct Syslog {
    receiver: Receiver,
    facility: u8,
    host: String,
}

impl Syslog {
    pub(super) fn new(socket: &Path, facility: u8) -> Self {
        // uname(2) gives the same.
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim_end();
        let is_sane = (1..=LONGEST_HOST_BYTES).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_graphic());
        Self {
            receiver: Receiver::new(socket),
            facility,
            host: if is_sane { host } else { "-" }.into(),
        }
    }

    /// The message that carries `line`.
    fn message(&self, time: SystemTime, line: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(line.len() + 128);
        // Memory takes everything.
        let _ = write!(
            message,
            "<{}>1 {} {} spliced {} access - ",
            self.facility * 8 + SEVERITY,
            humantime::format_rfc3339_millis(time),
            self.host,
            std::process::id()
        );
        message.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        message
    }
}

impl LogSink for Syslog {
    fn ready(&mut self) -> io::Result<()> {
        self.receiver.connect().map(drop)
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let message = self.message(SystemTime::now(), line);
        let send = |receiver: &mut Receiver, message: &[u8]| {
            receiver.send(|socket| socket.send(message).map(drop))
        };
        match send(&mut self.receiver, &message) {
            Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                let mut end = message.len().min(LONGEST_CUT_BYTES);
                // Not within a character of UTF-8.
                while end < message.len() && message[end] & 0xc0 == 0x80 {
                    end -= 1;
                }
                send(&mut self.receiver, &message[..end])
            }
            sent => sent,
        }
    }

    fn wait_writable(&self, time: Duration) {
        self.receiver.wait_writable(time);
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.receiver.connect().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use netlab::Scratch;

    use super::*;

    #[test]
    fn a_message_has_the_header_of_rfc_5424() {
        let mut syslog = Syslog::new("/nowhere".as_ref(), 19);
        syslog.host = "host".into();
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        let message = syslog.message(time, b"{\"id\":1}\n");
        let expected = format!(
            "<158>1 1970-01-01T00:00:01.500Z host spliced {} access - {{\"id\":1}}",
            std::process::id()
        );
        assert_eq!(String::from_utf8(message).expect("UTF-8"), expected);
    }

    #[test]
    fn a_message_that_the_socket_does_not_take_is_cut_between_characters() {
        let scratch = Scratch::new("syslog").expect("a directory");
        let path = scratch.path().join("log");
        let receiver = UnixDatagram::bind(&path).expect("bound");
        let mut syslog = Syslog::new(&path, 16);
        // More than any send buffer takes.
        let line = "ä".repeat(8 << 20);
        syslog.append(line.as_bytes()).expect("the beginning");
        let mut message = vec![0; 4 * LONGEST_CUT_BYTES];
        let length = receiver.recv(&mut message).expect("it came");
        let text = std::str::from_utf8(&message[..length]).expect("whole characters");
        assert!(text.ends_with("ä"), "{text}");
        assert!((LONGEST_CUT_BYTES - 1..=LONGEST_CUT_BYTES).contains(&length));
    }
}
