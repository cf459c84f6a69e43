"""The other side of the protocol that ask.py speaks: receives two sockets, and has what the one receives sent by the other.

    python3 answer.py CHANNEL

The argument is the number of a descriptor, a UNIX SOCK_SEQPACKET socket. A process with CAP_BPF and CAP_NET_ADMIN would
link the sockets in the kernel; this one copies the bytes, so that it needs no rights.
"""

import socket
import sys
import threading

REQUEST = b"splice01L"
MOST_DESCRIPTORS = 253


def requests(channel):
    """The sockets of each request, and what is wrong with it."""
    while True:
        # One more byte, so that a longer message is not taken for a request.
        request, numbers, flags, _ = socket.recv_fds(channel, len(REQUEST) + 1, MOST_DESCRIPTORS)
        if not request and not numbers:
            return
        sockets = [socket.socket(fileno=number) for number in numbers]
        if request == REQUEST and len(sockets) == 2 and not flags & socket.MSG_CTRUNC:
            yield sockets, None
        else:
            yield sockets, "a request is 'splice01L' with two descriptors"


def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)


def main():
    channel = socket.socket(fileno=int(sys.argv[1]))
    for sockets, problem in requests(channel):
        if problem is None and any(one.type != socket.SOCK_STREAM for one in sockets):
            problem = "only streams are copied here"
        if problem is None:
            threading.Thread(target=copy, args=sockets, daemon=True).start()
        channel.send(b"\0" if problem is None else b"\1" + problem.encode())


main()
