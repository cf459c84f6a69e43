//! TLS in the kernel for test connections.

use std::os::fd::AsFd;

use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};

/// Keys for AES-128-GCM of TLS 1.2, all zero: tests keep no secrets.
pub(crate) fn keys() -> TlsCryptoInfo {
    TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: libc::TLS_1_2_VERSION,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [0; 8],
        key: [0; 16],
        salt: [0; 4],
        rec_seq: [0; 8],
    })
}

/// Stacks TLS on a connected TCP socket, without keys.
pub(crate) fn stack(socket: &impl AsFd) -> nix::Result<()> {
    setsockopt(socket, TcpUlp::default(), b"tls")
}

/// Has the kernel encrypt what one socket of a connection sends, and decrypt it at the other, both ways.
#[allow(dead_code, reason = "not every program that shares it sends something")]
pub(crate) fn encrypt(ends: [&dyn AsFd; 2]) {
    for end in ends {
        stack(&end).expect("kTLS");
        setsockopt(&end, TcpTlsTx, &keys()).expect("keys to send with");
        setsockopt(&end, TcpTlsRx, &keys()).expect("keys to receive with");
    }
}
