//! A redirect on a map of your own: you choose its type and its keys, and you see who is in it.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use splice_sockmap::{Cookie, FourTuple, Redirect, SockHash};

fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let connected = || TcpStream::connect(listener.local_addr()?);
    let (mut client, mut server) = (connected()?, connected()?);
    let ((source, _), (target, _)) = (listener.accept()?, listener.accept()?);

    let map = SockHash::<FourTuple>::create(64)?;
    let proxy = map.attach(Redirect::IngressToEgress)?;
    let key = FourTuple::of(&source)?;
    let mut link = proxy.link(key, &source, &target)?;
    assert_eq!(proxy.cookie(key)?, Some(Cookie::of(&source)?));

    client.write_all(b"hello")?;
    server.read_exact(&mut [0; 5])?;
    assert_eq!(proxy.iter().count(), 1);
    println!("1 source is in the map");
    let detached = proxy.detach([(&mut link, &source)], Duration::from_secs(1));
    let map = detached.map_err(|failed| failed.1)?;
    client.write_all(b"bye")?;
    (&source).read_exact(&mut [0; 3])?;
    println!(
        "{} is still there, without the redirect",
        map.iter().count()
    );
    Ok(())
}
