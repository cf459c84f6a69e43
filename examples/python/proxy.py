#!/usr/bin/env python3
"""A TCP proxy with libsplice: proxy.py LISTEN_PORT TARGET_ADDRESS TARGET_PORT"""

import asyncio
import ctypes
import os
import socket
import struct
import sys


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("max_bytes", ctypes.c_uint64),
        ("idle_ms", ctypes.c_uint64),
        ("memory_bytes", ctypes.c_uint64),
    ]


class Result(ctypes.Structure):
    _fields_ = [
        ("a_to_b", ctypes.c_uint64),
        ("b_to_a", ctypes.c_uint64),
        ("reason", ctypes.c_int32),
        ("error", ctypes.c_int32),
    ]


SPLICE_FINAL = 1

# Without argument types, ctypes would pass a pointer as an int of 32 bits.
library = ctypes.CDLL("libsplice.so.1")
library.splice_join.argtypes = [
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(Options),
    ctypes.POINTER(ctypes.c_void_p),
]
library.splice_fd.argtypes = [ctypes.c_void_p]
library.splice_counters.argtypes = [ctypes.c_void_p, ctypes.POINTER(Result)]
library.splice_release.argtypes = [ctypes.c_void_p]
library.splice_release.restype = None
library.splice_strerror.restype = ctypes.c_char_p


def join(a, b):
    """Gives both sockets up for good."""
    options = Options(size=ctypes.sizeof(Options), flags=SPLICE_FINAL)
    pair = ctypes.c_void_p()
    if library.splice_join(a.fileno(), b.fileno(), options, ctypes.byref(pair)) == -1:
        raise OSError(library.splice_strerror().decode())
    return pair


async def ended(pair):
    loop = asyncio.get_running_loop()
    fd = library.splice_fd(pair)
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    await event.wait()
    loop.remove_reader(fd)
    result = Result()
    library.splice_counters(pair, result)
    return result


async def serve(client, target):
    # Closed after the join: the library has duplicates.
    with client, socket.socket() as server:
        server.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(server, target)
            pair = join(client, server)
        except OSError as error:
            # A reset, not an empty answer.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            print(f"cannot serve a connection: {error}", file=sys.stderr)
            return
    result = await ended(pair)
    library.splice_release(pair)
    if result.error:
        print(f"a connection failed: {os.strerror(result.error)}", file=sys.stderr)
    print(f"{result.a_to_b} bytes up, {result.b_to_a} bytes down", flush=True)


async def main(port, target):
    listener = socket.create_server(("127.0.0.1", port))
    listener.setblocking(False)
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    # The event loop has only weak references to its tasks.
    connections = set()
    while True:
        client, _ = await asyncio.get_running_loop().sock_accept(listener)
        connection = asyncio.create_task(serve(client, target))
        connections.add(connection)
        connection.add_done_callback(connections.discard)


if len(sys.argv) != 4:
    sys.exit(f"usage: {sys.argv[0]} LISTEN_PORT TARGET_ADDRESS TARGET_PORT")
try:
    asyncio.run(main(int(sys.argv[1]), (sys.argv[2], int(sys.argv[3]))))
except OSError as error:
    sys.exit(f"cannot listen: {error}")
