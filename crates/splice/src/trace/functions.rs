//! The functions of the kernel that a message goes through.

use splice_bpf::tracing::Target;

/// Functions that say something wherever a watched process or socket calls them.
const OUTER: &[&str] = &[
    // What a process calls.
    "__sys_sendto",
    "__sys_recvfrom",
    "____sys_sendmsg",
    "____sys_recvmsg",
    "sock_write_iter",
    "sock_read_iter",
    "do_splice",
    "do_epoll_wait",
    "do_sys_poll",
    "io_submit_sqes",
    "io_issue_sqe",
    "io_submit_one",
    "aio_read",
    "aio_write",
    // What the kernel calls for it, in a worker or a thread of its own.
    "__io_run_local_work",
    "sk_psock_backlog",
];

/// Functions that count only for a watched connection, or where one of the others has called them.
const INNER: &[&str] = &[
    // Sending.
    "sock_sendmsg",
    "inet_sendmsg",
    "inet6_sendmsg",
    "io_send",
    "splice_to_socket",
    "tcp_sendmsg",
    "tcp_sendmsg_locked",
    "tcp_push",
    "__tcp_push_pending_frames",
    "tcp_write_xmit",
    "__tcp_transmit_skb",
    "__tcp_send_ack",
    "tcp_send_ack",
    "udp_sendmsg",
    "udp_send_skb",
    "udpv6_sendmsg",
    // Down to the device.
    "__ip_queue_xmit",
    "inet6_csk_xmit",
    "ip6_xmit",
    "ip_local_out",
    "ip_output",
    "ip6_output",
    "ip_finish_output2",
    "ip6_finish_output2",
    "__dev_queue_xmit",
    "dev_hard_start_xmit",
    "loopback_xmit",
    "veth_xmit",
    "__netif_rx",
    "netif_rx_internal",
    "enqueue_to_backlog",
    // The softirq, which goes up again.
    "__local_bh_enable_ip",
    "do_softirq",
    "handle_softirqs",
    "net_rx_action",
    "__napi_poll",
    "process_backlog",
    "__netif_receive_skb",
    "tc_run",
    "cls_bpf_classify",
    "skb_do_redirect",
    "ip_rcv",
    "ipv6_rcv",
    "ip_local_deliver",
    "ip_protocol_deliver_rcu",
    "ip6_protocol_deliver_rcu",
    "tcp_v4_rcv",
    "tcp_v6_rcv",
    "tcp_v4_do_rcv",
    "tcp_v6_do_rcv",
    "tcp_rcv_established",
    "tcp_ack",
    "tcp_data_queue",
    "tcp_queue_rcv",
    "tcp_data_ready",
    "udp_rcv",
    "udpv6_rcv",
    "udp_queue_rcv_skb",
    // Waking whoever waits.
    "sock_def_readable",
    "sock_def_write_space",
    "sk_stream_write_space",
    "__wake_up_sync_key",
    "__wake_up_common",
    "ep_poll_callback",
    "pollwake",
    "io_poll_wake",
    "default_wake_function",
    "try_to_wake_up",
    // Receiving.
    "sock_recvmsg",
    "inet_recvmsg",
    "inet6_recvmsg",
    "io_recv",
    "sock_splice_read",
    "tcp_splice_read",
    "skb_splice_bits",
    "tcp_recvmsg",
    "tcp_recvmsg_locked",
    "skb_copy_datagram_iter",
    "tcp_rcv_space_adjust",
    "tcp_cleanup_rbuf",
    "__tcp_cleanup_rbuf",
    "udp_recvmsg",
    // SOCKMAP: what is sent.
    "tcp_bpf_sendmsg",
    "tcp_bpf_send_verdict",
    "sk_msg_alloc",
    "sk_msg_memcopy_from_iter",
    "sk_psock_msg_verdict",
    "bpf_msg_redirect_map",
    "bpf_msg_redirect_hash",
    "__sock_map_lookup_elem",
    "__sock_hash_lookup_elem",
    "sk_msg_return",
    "tcp_bpf_sendmsg_redir",
    "bpf_tcp_ingress",
    "tcp_bpf_push",
    "tcp_bpf_recvmsg",
    "tcp_bpf_recvmsg_parser",
    "sk_msg_recvmsg",
    // SOCKMAP: what has arrived.
    "sk_psock_verdict_data_ready",
    "sk_psock_strp_data_ready",
    "sk_psock_strp_read",
    "tcp_read_skb",
    "sk_psock_verdict_recv",
    "bpf_sk_redirect_map",
    "bpf_sk_redirect_hash",
    "sk_psock_verdict_apply",
    "sk_psock_skb_redirect",
    "sk_psock_handle_skb",
    "skb_send_sock",
    "__skb_send_sock",
    "sk_psock_skb_ingress_self",
    "sk_psock_skb_ingress_enqueue",
];

/// All of them.
pub(super) fn targets() -> Vec<Target> {
    let outer = OUTER.iter().map(|&name| Target { name, inner: false });
    let inner = INNER.iter().map(|&name| Target { name, inner: true });
    outer.chain(inner).collect()
}

/// Whether a process hands over a message with this function.
pub(super) fn is_send(name: &str) -> bool {
    [
        "__sys_sendto",
        "____sys_sendmsg",
        "sock_write_iter",
        "__x64_sys_sendto",
        "__x64_sys_write",
        "__x64_sys_writev",
        "__x64_sys_sendmsg",
        "ksys_write",
    ]
    .contains(&name)
}
