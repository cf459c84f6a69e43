//! HAProxy, nginx and curl as senders and receivers of PROXY headers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use netlab::{Process, Scratch};

use super::Proxy;
use super::routes::{Site, connect, expect};
use crate::patience::{until, until_found};
use crate::relay::output;
use crate::server::free_port;

/// HAProxy or nginx with this configuration, once it listens on `port`.
fn peer(program: &str, arguments: &[&str], port: u16) -> Process {
    let mut command = Process::command(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let process = Process::spawn(&mut command).expect(program);
    until("it listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    process
}

fn haproxy(directory: &Scratch, listen: &str, server: &str, port: u16) -> Process {
    let configuration = format!(
        "global\n    maxconn 100\ndefaults\n    mode tcp\n    timeout connect 5s\n    timeout client 60s\n    \
         timeout server 60s\nlisten l\n    bind 127.0.0.1:{port} {listen}\n    server s {server}\n"
    );
    let path = directory
        .write("haproxy.cfg", &configuration)
        .expect("written");
    peer(
        "haproxy",
        &["-db", "-f", path.to_str().expect("UTF-8")],
        port,
    )
}

fn nginx(directory: &Scratch, listen: &str, more: &str, server: &str, port: u16) -> Process {
    let configuration = format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nworker_processes 1;\n\
         pid {0}/nginx.pid;\nerror_log stderr;\nevents {{}}\nstream {{ server {{ listen 127.0.0.1:{port} {listen}; \
         {more} proxy_pass {server}; }} }}\n",
        directory.path().display()
    );
    let path = directory
        .write("nginx.conf", &configuration)
        .expect("written");
    let path = path.to_str().expect("UTF-8");
    let prefix = directory.path().to_str().expect("UTF-8").to_owned();
    peer("nginx", &["-p", &prefix, "-c", path, "-e", "stderr"], port)
}

/// Every connection of the test, but for those that look whether somebody listens.
fn accept_with(site: &Site, first: u8) -> TcpStream {
    until_found("the client's connection", || {
        let stream = site.accept();
        let mut byte = [0];
        matches!(stream.peek(&mut byte), Ok(1) if byte[0] == first).then_some(stream)
    })
}

fn requiring(site: &Site) -> Proxy {
    Proxy::run(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"require\"\n\
         trusted = [\"127.0.0.0/8\"]\n[[listener.route]]\nbackend = \"b\"\n[backend.b]\n\
         servers = [\"{}\"]\nsend_proxy = \"v1\"\n",
        site.address()
    ))
}

#[test]
fn headers_of_haproxy_nginx_and_curl_are_taken() {
    let site = Site::new();
    let proxy = requiring(&site);
    let address = proxy.address("l");
    for sender in ["haproxy-v1", "haproxy-v2", "nginx"] {
        let directory = Scratch::new("sender").expect("a directory");
        let port = free_port();
        let _sender = match sender {
            "haproxy-v1" => haproxy(&directory, "", &format!("{address} send-proxy"), port),
            "haproxy-v2" => haproxy(
                &directory,
                "",
                &format!("{address} send-proxy-v2 proxy-v2-options unique-id,crc32c"),
                port,
            ),
            _ => nginx(&directory, "", "proxy_protocol on;", &address, port),
        };
        let mut client = connect(&format!("127.0.0.1:{port}"));
        client.write_all(b"hello").expect("sent");
        let from = client.local_addr().expect("an address").port();
        let expected = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {port}\r\nhello");
        let mut server = until_found("this client", || {
            let mut server = site.accept();
            let mut bytes = vec![0; expected.len()];
            (server.read_exact(&mut bytes).is_ok() && bytes == expected.as_bytes())
                .then_some(server)
        });
        server.write_all(b"back").expect("sent");
        expect(&mut client, b"back");
    }
    let url = format!("http://{address}/");
    let asked = std::thread::spawn(move || {
        output(
            Command::new("curl")
                .env_clear()
                .args(["-sS", "--haproxy-protocol", &url]),
        )
    });
    // The senders were looked for by connections, which have nothing behind their header.
    let (mut server, text) = until_found("the request", || {
        let mut server = site.accept();
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(b"\r\n\r\n") && server.read_exact(&mut byte).is_ok() {
            text.extend(byte);
        }
        text.ends_with(b"\r\n\r\n").then_some((server, text))
    });
    server
        .write_all(b"HTTP/1.0 200 OK\r\n\r\nhello")
        .expect("answered");
    drop(server);
    let told = asked.join().expect("no panic");
    assert_eq!(told.stdout, b"hello", "{told:?}");
    let text = String::from_utf8(text).expect("ASCII");
    assert!(
        text.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "),
        "{text}"
    );
    assert!(text.contains("\r\nGET / HTTP/1.1\r\n"), "{text}");
}

#[test]
fn haproxy_and_nginx_take_our_headers() {
    for (receiver, version) in [
        ("haproxy", "v1"),
        ("haproxy", "v2"),
        ("nginx", "v1"),
        ("nginx", "v2"),
    ] {
        let site = Site::new();
        let directory = Scratch::new("receiver").expect("a directory");
        let port = free_port();
        // Each passes the header on, so that it shows what it has understood.
        let _receiver = match receiver {
            "haproxy" => haproxy(
                &directory,
                "accept-proxy",
                &format!("{} send-proxy", site.address()),
                port,
            ),
            _ => nginx(
                &directory,
                "proxy_protocol",
                "set_real_ip_from 127.0.0.0/8; proxy_protocol on;",
                &site.address(),
                port,
            ),
        };
        let proxy = Proxy::run(&format!(
            "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"require\"\n\
             trusted = [\"127.0.0.0/8\"]\n[[listener.route]]\nbackend = \"b\"\n[backend.b]\n\
             servers = [\"127.0.0.1:{port}\"]\nsend_proxy = \"{version}\"\n",
        ));
        let mut client = connect(&proxy.address("l"));
        client
            .write_all(b"PROXY TCP4 203.0.113.9 198.51.100.1 4000 443\r\nhello")
            .expect("sent");
        let mut server = accept_with(&site, b'P');
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            server.read_exact(&mut byte).expect("a header");
            line.extend(byte);
        }
        let line = String::from_utf8(line).expect("ASCII");
        assert!(
            line.starts_with("PROXY TCP4 203.0.113.9 "),
            "{receiver} {version}: {line}"
        );
        expect(&mut server, b"hello");
    }
}

/// A client without addresses, with and without fields that have come in.
#[test]
fn haproxy_takes_the_header_of_a_unix_client() {
    let site = Site::new();
    let directory = Scratch::new("receiver").expect("a directory");
    let port = free_port();
    let _haproxy = haproxy(&directory, "accept-proxy", &site.address(), port);
    let path = directory.path().join("socket");
    for (listener, sent) in [
        ("", &b""[..]),
        (
            "proxy_protocol = \"require\"\ntrusted = [\"127.0.0.0/8\"]\n",
            b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\x05\x05\0\x02id",
        ),
    ] {
        for version in ["v1", "v2"] {
            let proxy = Proxy::run(&format!(
                "[[listener]]\nname = \"l\"\naddress = \"unix:{}\"\n{listener}[[listener.route]]\n\
                 backend = \"b\"\n[backend.b]\nservers = [\"127.0.0.1:{port}\"]\n\
                 send_proxy = \"{version}\"\n",
                path.display()
            ));
            let mut client = UnixStream::connect(&path).expect("connected");
            client.write_all(&[sent, b"hello"].concat()).expect("sent");
            client.shutdown(Shutdown::Write).expect("ended");
            let mut server = accept_with(&site, b'h');
            let mut text = String::new();
            server.read_to_string(&mut text).expect("its end");
            assert_eq!(text, "hello", "{version}");
            drop(proxy);
        }
    }
}
