//! A sidecar that is left out: what an application sends to its sidecar is sent by the sidecar's own connection.
//!
//! application ══ sidecar ── server becomes application ═══════════ server, without a wake-up of the sidecar.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use splice_sockmap::{MapType, Redirect, Redirections};

fn connection() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut application, sidecar) = connection()?;
    let (upstream, mut server) = connection()?;

    let shortcut = Redirections::new(Redirect::SendToEgress, MapType::Map, 1)?;
    let link = shortcut.link(&application, &upstream)?;
    application.write_all(b"GET / HTTP/1.0\r\n\r\n")?;

    let mut request = [0; 18];
    server.read_exact(&mut request)?;
    assert_eq!(&request, b"GET / HTTP/1.0\r\n\r\n");
    sidecar.set_nonblocking(true)?;
    assert!(
        (&sidecar).read(&mut request).is_err(),
        "the sidecar has nothing to read"
    );
    println!(
        "{} bytes went from the application to the server",
        link.counters().bytes
    );
    Ok(())
}
