//! Container bypass: what one process sends goes to the reader of another on the same host, past TCP/IP.
//!
//! Here both processes are this one. `spliced bypass` does it for processes that know nothing of it.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use splice_sockmap::{MapType, Redirect, Redirections};

const MESSAGES: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;

    // Each end sends to the other's reader. Nothing may wait there: a reader takes what was redirected first.
    let bypass = Redirections::new(Redirect::SendToLocal, MapType::Hash, 2)?;
    let requests = bypass.link(&client, &server)?;
    let replies = bypass.link(&server, &client)?;

    let mut message = *b"ping";
    for _ in 0..MESSAGES {
        client.write_all(b"ping")?;
        server.read_exact(&mut message)?;
        assert_eq!(&message, b"ping");
        server.write_all(b"pong")?;
        client.read_exact(&mut message)?;
        assert_eq!(&message, b"pong");
    }
    println!(
        "{} messages to the server and {} to the client went past TCP/IP",
        requests.counters().messages,
        replies.counters().messages
    );
    Ok(())
}
