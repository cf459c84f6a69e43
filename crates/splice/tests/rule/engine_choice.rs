//! The engine and the reason for it are visible; what cannot be joined is refused in words.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};

use rustix::net::{AddressFamily, SocketType, socket};
use splice::{Endpoint, EngineChoice, EngineName, ErrorKind};

use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::patience::until;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, send};

const MESSAGES: u64 = 200;
const MESSAGE_BYTES: u64 = 200;
const BULK_BYTES: u64 = 4 << 20;

pub(crate) fn is_visible(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    let Joined { a, b, handle } = relay.join(Mix::TCP4);

    for message in 0..MESSAGES {
        let range = message * MESSAGE_BYTES..(message + 1) * MESSAGE_BYTES;
        send(&a, from_a, range.clone(), Pace::Steady);
        receive(&b, from_a, range.clone(), Pace::Steady);
        send(&b, from_b, range.clone(), Pace::Steady);
        receive(&a, from_b, range, Pace::Steady);
    }
    let (name, why) = handle.engine();
    match engine.choice {
        EngineChoice::Auto => assert_eq!(name, EngineName::Copy, "{why}"),
        EngineChoice::Only(only) => assert_eq!(name, only, "{why}"),
    }
    assert!(!why.is_empty());

    let start = MESSAGES * MESSAGE_BYTES;
    std::thread::scope(|scope| {
        scope.spawn(|| send(&a, from_a, start..start + BULK_BYTES, Pace::Steady));
        receive(&b, from_a, start..start + BULK_BYTES, Pace::Steady);
    });
    if engine.choice == EngineChoice::Auto {
        until("bulk goes by pipe", || {
            handle.engine().0 == EngineName::Pipe
        });
        assert_ne!(handle.engine().1, why);
    }
    let shown = handle.engine();
    drop((a, b));
    let outcome = outcome(&handle);
    // At the end the reason includes how much a kernel engine left to user space.
    let (name, why) = (outcome.engine, outcome.why_engine);
    assert_eq!(name, shown.0, "{why}");
    assert!(why.starts_with(&*shown.1), "{why}");
    assert_eq!(handle.engine(), (name, why));
}

pub(crate) fn refuses_what_cannot_be_joined(engine: &Contestant) {
    let written = engine.choice.to_string();
    assert_eq!(written.parse::<EngineChoice>().unwrap(), engine.choice);
    let error = format!("{written}x").parse::<EngineChoice>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineRefused);
    let text = error.to_string();
    assert!(text.contains(&written) && !text.contains('\n'), "{text}");

    let directory = tempfile::tempdir().unwrap();
    let unconnected = |family| socket(family, SocketType::STREAM, None).unwrap();
    let wrong: [OwnedFd; 8] = [
        std::fs::File::open("/dev/null").unwrap().into(),
        std::io::pipe().unwrap().0.into(),
        UdpSocket::bind("127.0.0.1:0").unwrap().into(),
        UnixDatagram::unbound().unwrap().into(),
        unconnected(AddressFamily::INET),
        unconnected(AddressFamily::UNIX),
        TcpListener::bind("[::1]:0").unwrap().into(),
        UnixListener::bind(directory.path().join("listener"))
            .unwrap()
            .into(),
    ];
    for fd in wrong {
        let what = format!("{fd:?}");
        let error = Endpoint::new(fd).expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::UnsupportedSocket, "{error}");
        assert!(!error.to_string().contains('\n'));
    }
}
