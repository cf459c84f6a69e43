//! Kernels that are too old for a redirect.

use splice_base::error::{Error, ErrorKind, Result};
use splice_base::release::{FOREIGN_BYTES, Release};

use crate::redirect::Redirect;
use crate::socket_kind::SocketKind;

/// Refuses a kernel that is known to harm the target. One of which nothing is known is not refused.
pub(crate) fn require(
    redirect: Redirect,
    target: SocketKind,
    release: Option<Release>,
) -> Result<()> {
    let is_to_tcp_reader = redirect.is_to_local() && target == SocketKind::Tcp;
    let lacks = release.and_then(|release| release.lacks(FOREIGN_BYTES));
    if !is_to_tcp_reader || lacks != Some(true) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::UnsupportedSocket,
        format!(
            "the redirect {redirect} is refused to a TCP socket on this kernel, which counts the redirected bytes as read from \
             the socket's own connection: it may stall or skip later ones (tcp_bpf_recvmsg_parser)"
        ),
    )
    .with_remedy(
        "run Linux 6.1.165, 6.12.75, 6.18.14 or 7.0, or later releases of these series, or ask for it with despite_defects",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_to_a_tcp_reader_is_refused_on_kernels_that_count_its_bytes_wrongly() {
        let on = |redirect, target, release| require(redirect, target, Release::of(release, ""));
        for redirect in [Redirect::SendToLocal, Redirect::IngressToLocal] {
            for release in ["6.1.164", "6.12.74", "6.18.13"] {
                let error = on(redirect, SocketKind::Tcp, release).expect_err("it is too old");
                assert_eq!(error.kind(), ErrorKind::UnsupportedSocket);
                for part in ["tcp_bpf_recvmsg_parser", "6.1.165", "despite_defects"] {
                    assert!(error.to_string().contains(part), "{error}");
                }
                for target in SocketKind::ALL.into_iter().skip(1) {
                    on(redirect, target, release).expect("another kind is not harmed");
                }
            }
            for release in ["6.1.165", "6.12.75", "6.17.9", "6.18.44", "7.0.1", "next"] {
                on(redirect, SocketKind::Tcp, release).expect("it is not known to be too old");
            }
        }
        for redirect in [Redirect::SendToEgress, Redirect::IngressToEgress] {
            on(redirect, SocketKind::Tcp, "6.1.1").expect("it is to no reader");
        }
    }
}
