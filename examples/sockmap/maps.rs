//! Containers of sockets: a SOCKMAP has indices, a SOCKHASH keys. Both hold weak references.

use std::error::Error;
use std::net::{TcpListener, TcpStream};

use splice_sockmap::{Cookie, SockHash, SockMap};

fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;

    let map = SockMap::create(8)?;
    map.insert(3, &client)?;
    map.insert(5, &server)?;
    let of_client = Cookie::of(&client)?;
    assert_eq!(map.cookie(3)?, Some(of_client));

    let hash = SockHash::<Cookie>::create(8)?;
    hash.insert(of_client, &client)?;
    for (key, cookie) in hash.iter() {
        assert_eq!(key, cookie);
    }
    println!(
        "{} sockets by index, {} by cookie",
        map.iter().count(),
        hash.iter().count()
    );

    // Removed, and closed: a map keeps no socket alive.
    map.remove(5)?;
    drop(client);
    println!(
        "{} by index and {} by cookie are left",
        map.iter().count(),
        hash.iter().count()
    );
    Ok(())
}
