"""A plain relay: arguments are its port, and the address of the server."""

import socket
import sys
import threading

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
client, _ = listener.accept()
host, port = sys.argv[2].rsplit(":", 1)
server = socket.create_connection((host, int(port)))


def relay(source, destination):
    while data := source.recv(65536):
        destination.sendall(data)
    destination.shutdown(socket.SHUT_WR)


back = threading.Thread(target=relay, args=(server, client))
back.start()
relay(client, server)
back.join()
