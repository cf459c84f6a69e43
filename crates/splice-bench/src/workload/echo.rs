//! Bursts that an echo server returns, as the original's client sends them.
//!
//! One burst is a block: it is sent without waiting while what comes back is received, and the time
//! is that until all of it is back. The next burst begins after that.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use socket2::{Domain, SockRef, Socket, Type};

use crate::payload::Payload;
use crate::site::PATIENCE;
use crate::statistics::Times;

/// How long a receiving call polls the device before it sleeps: the original's 10 ms.
pub(crate) const BUSY_POLL: Duration = Duration::from_millis(10);

/// Each burst begins so many bytes further in the payload, so that no two are alike; odd and no
/// divisor of a block.
const STEP_BYTES: usize = 4093;

/// One connection to an echo server.
#[derive(Debug)]
pub(crate) struct Bursts {
    stream: TcpStream,
    block_bytes: usize,
    /// Two blocks of random bytes, of which each burst is a part.
    payload: Vec<u8>,
    offset: usize,
    returned: Vec<u8>,
}

impl Bursts {
    /// Connects to the echo server at `address`.
    pub(crate) fn connect(
        address: SocketAddr,
        block_bytes: usize,
        busy_poll: bool,
    ) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // Twice a block, as in the original. Before connecting, so that the window has its size from
        // the beginning; forced, or net.core.wmem_max would cut it without a word.
        sockopt::set_socket_send_buffer_size_force(&socket, 2 * block_bytes)
            .and_then(|()| sockopt::set_socket_recv_buffer_size_force(&socket, 2 * block_bytes))
            .context("cannot size a socket's buffers, which needs CAP_NET_ADMIN")?;
        socket
            .connect_timeout(&address.into(), PATIENCE)
            .with_context(|| format!("cannot connect to {address}"))?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        if busy_poll {
            set_busy_poll(&stream)?;
        }
        let mut payload = vec![0; 2 * block_bytes];
        Payload::new(block_bytes as u64).fill(&mut payload);
        Ok(Self {
            stream,
            block_bytes,
            payload,
            offset: 0,
            returned: vec![0; block_bytes],
        })
    }

    /// Sends `count` bursts, fewer when the program is interrupted; fails at the first that does not
    /// come back as it was sent.
    pub(crate) fn send(&mut self, count: u32) -> Result<Times> {
        let mut times = Times::default();
        for number in 0..count {
            if netlab::interrupted().is_some() {
                break;
            }
            let time = self.burst().with_context(|| format!("burst {number}"))?;
            times.push(time);
        }
        Ok(times)
    }

    /// Ends the connection; fails when more came back than was sent.
    pub(crate) fn finish(self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        match recv(&self.stream, &mut [0u8; 1], RecvFlags::empty()) {
            Ok((0, _)) => Ok(()),
            Ok(_) => bail!("more bytes came back than were sent"),
            Err(error) => Err(error).context("no end of stream after the last burst"),
        }
    }

    fn burst(&mut self) -> Result<Duration> {
        let block = &self.payload[self.offset..self.offset + self.block_bytes];
        let begin = Instant::now();
        let (mut sent, mut back) = (0, 0);
        while back < self.block_bytes {
            let before = sent;
            if sent < self.block_bytes {
                match send(
                    &self.stream,
                    &block[sent..],
                    SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                ) {
                    Ok(bytes) => sent += bytes,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => {
                        return Err(error)
                            .with_context(|| format!("sending stopped after {sent} bytes"));
                    }
                }
            }
            // What was sent may go on being sent, so waiting is for when nothing could be.
            let may_wait = sent == self.block_bytes || sent == before;
            let flags = if may_wait {
                RecvFlags::empty()
            } else {
                RecvFlags::DONTWAIT
            };
            match recv(&self.stream, &mut self.returned[back..], flags) {
                Ok((0, _)) => bail!("the echo ended the stream after {back} bytes"),
                Ok((bytes, _)) => back += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !may_wait => {}
                Err(Errno::AGAIN) => bail!(
                    "{} of {sent} bytes did not come back within {} s",
                    sent - back,
                    PATIENCE.as_secs()
                ),
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("receiving stopped after {back} bytes"));
                }
            }
        }
        let time = begin.elapsed();
        // Comparing would be a part of the time if it were done while receiving.
        if self.returned != block {
            let pairs = self.returned.iter().zip(block);
            let same = pairs
                .take_while(|(returned, sent)| returned == sent)
                .count();
            bail!("byte {same} came back changed, doubled or out of place");
        }
        self.offset = (self.offset + STEP_BYTES) % self.block_bytes;
        Ok(time)
    }
}

/// Lets receiving calls on `stream` poll the device before they sleep.
pub(crate) fn set_busy_poll(stream: &TcpStream) -> Result<()> {
    SockRef::from(stream)
        .set_busy_poll(BUSY_POLL.as_micros() as u32)
        .context("cannot set SO_BUSY_POLL, which needs CAP_NET_ADMIN")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::thread;

    use netlab::{Need, available};

    use super::Bursts;

    /// Bytes of a block in these tests, and where in the second burst the echo spoils something.
    const BLOCK_BYTES: usize = 64 << 10;
    const SPOILED: usize = BLOCK_BYTES + 1234;

    /// What an echo server does with the byte at [`SPOILED`].
    #[derive(Clone, Copy, Debug)]
    enum Spoil {
        Nothing,
        Change,
        Lose,
        Double,
        /// One byte too many, after the last burst.
        Add,
    }

    /// Serves one connection on a thread of its own.
    fn echo(spoil: Spoil) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            serve(&stream, spoil);
        });
        address
    }

    fn serve(mut stream: &TcpStream, spoil: Spoil) {
        let (mut buffer, mut offset) = (vec![0; 8 << 10], 0);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let mut piece = buffer[..count].to_vec();
            if let Some(at) = SPOILED.checked_sub(offset).filter(|&at| at < count) {
                match spoil {
                    Spoil::Change => piece[at] ^= 1,
                    Spoil::Lose => drop(piece.remove(at)),
                    Spoil::Double => piece.insert(at, piece[at]),
                    Spoil::Nothing | Spoil::Add => {}
                }
            }
            offset += count;
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
        if matches!(spoil, Spoil::Add) {
            let _ = stream.write_all(&[0]);
        }
        let _ = stream.shutdown(Shutdown::Write);
    }

    fn outcome(spoil: Spoil) -> Result<usize, String> {
        let run = || {
            let mut bursts = Bursts::connect(echo(spoil), BLOCK_BYTES, true)?;
            let times = bursts.send(3)?;
            bursts.finish()?;
            Ok(times.len())
        };
        run().map_err(|error: anyhow::Error| format!("{error:#}"))
    }

    #[test]
    fn a_sound_echo_is_timed_burst_by_burst() {
        if !available(Need::Root) {
            return;
        }
        assert_eq!(outcome(Spoil::Nothing), Ok(3));
    }

    #[test]
    fn a_byte_that_is_changed_lost_doubled_or_added_is_found() {
        if !available(Need::Root) {
            return;
        }
        for (spoil, sentence) in [
            (Spoil::Change, "burst 1: byte 1234 came back changed, "),
            (Spoil::Lose, "burst 1: 1 of 65536 bytes did not come back"),
            // The payload could have two equal bytes there; it has not.
            (Spoil::Double, "burst 1: byte 1235 came back changed, "),
            (Spoil::Add, "more bytes came back than were sent"),
        ] {
            let said = outcome(spoil).expect_err("the echo is spoiled");
            assert!(said.starts_with(sentence), "{spoil:?}: {said}");
        }
    }
}
