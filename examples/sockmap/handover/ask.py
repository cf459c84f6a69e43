"""Hands two connected sockets to a process that links them in the kernel, as libsplice-sockmap's `handover` reads them.

A request is b"splice01L" with two descriptors in one SCM_RIGHTS message (the source, the target) on a UNIX
SOCK_SEQPACKET socket. The answer is one byte, 0 for linked, or 1 and the reason in UTF-8.

    python3 ask.py CHANNEL SOURCE TARGET

The arguments are numbers of descriptors that are open already.
"""

import socket
import sys

REQUEST = b"splice01L"
REASON_MOST_BYTES = 1000


def ask(channel, source, target):
    """Asks the process at the other end of channel to link two sockets. Returns the reason if it does not."""
    socket.send_fds(channel, [REQUEST], [source, target])
    answer = channel.recv(1 + REASON_MOST_BYTES)
    if answer == b"\0":
        return None
    if answer[:1] != b"\1":
        raise ConnectionError("the other process has ended, or speaks another protocol")
    return answer[1:].decode()


def main():
    channel, source, target = (int(number) for number in sys.argv[1:])
    reason = ask(socket.socket(fileno=channel), source, target)
    print("linked" if reason is None else f"refused: {reason}")
    sys.exit(0 if reason is None else 1)


main()
