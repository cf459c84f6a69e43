//! The first message of a TLS client, on which routers decide.

/// That of Go 1.26 (`crypto/tls`), with a post-quantum key share and so longer than one segment.
pub(crate) const CLIENT_HELLO: &[u8] = include_bytes!("client_hello.bin");

#[cfg(test)]
mod tests {
    use super::CLIENT_HELLO;
    use crate::router::SERVER_NAME;

    #[test]
    fn the_hello_is_one_record_with_the_name_that_routers_know() {
        // RFC 8446, 5.1 and 4: a record of the type handshake, in it one message of type 1.
        let [22, 3, 1, high, low, 1, 0, message_high, message_low, ..] = *CLIENT_HELLO else {
            panic!("no client hello: {:?}", &CLIENT_HELLO[..9]);
        };
        let length = |high, low| usize::from(u16::from_be_bytes([high, low]));
        assert_eq!(length(high, low), CLIENT_HELLO.len() - 5);
        assert_eq!(length(message_high, message_low), CLIENT_HELLO.len() - 9);
        // RFC 6066, 3: a host name (type 0), its length, the name.
        let name = [&[0, 0, SERVER_NAME.len() as u8], SERVER_NAME.as_bytes()].concat();
        let mut parts = CLIENT_HELLO.windows(name.len());
        assert!(parts.any(|part| part == name));
    }
}
