#!/usr/bin/env python3
"""A client of: spliced mesh HOST:PORT --frame u32be@0 --register name

client.py HOST:PORT NAME [TOKEN]. Each line on stdin is a receiver, by name or id, and a text for it."""

import queue, socket, struct, sys, threading

address, name, token = (sys.argv + [""])[1:4]
host, _, port = address.rpartition(":")
mesh = socket.create_connection((host.strip("[]"), int(port)))
stream, found = mesh.makefile("rb"), queue.Queue()


def send(destination, body):
    mesh.sendall(struct.pack(">II", len(body), destination) + body)


def listen():
    while len(header := stream.read(8)) == 8:
        length, destination = struct.unpack(">II", header)
        body = stream.read(length)
        if destination != 0:
            print(body.decode(), flush=True)
            continue
        receiver, code, frames, about = struct.unpack(">QIIQ", body)
        if code == 1:
            print("registered as", receiver, flush=True)
        elif code in (13, 14):  # found, or 0: no such name
            found.put(about)
        else:
            print("notice", code, "frames", frames, "destination", about, flush=True)
    found.put(0)  # the mesh has closed the connection


send(0, struct.pack(">IQB", 1, 0, len(name.encode())) + name.encode() + token.encode())
listener = threading.Thread(target=listen)
listener.start()
for line in sys.stdin:
    to, _, text = line.rstrip("\n").partition(" ")
    if not to.isdigit():
        send(0, struct.pack(">II", 2, 0) + to.encode())
        to = found.get()
    send(int(to), text.encode()) if int(to) else print("nobody has this name", flush=True)
mesh.shutdown(socket.SHUT_WR)
listener.join()
