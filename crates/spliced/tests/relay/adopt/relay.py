"""A relay that does what a line on its standard input says: arguments are its port, and the address of the server."""

import os
import select
import socket
import sys
import time

SELF = sys.orig_argv
if sys.argv[1] == "again":
    client, server = [socket.socket(fileno=int(number)) for number in sys.argv[2:4]]
else:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    client, _ = listener.accept()
    host, port = sys.argv[2].rsplit(":", 1)
    server = socket.create_connection((host, int(port)))
ends = {client: server, server: client}
commands = [0]


def obey(line):
    global client
    if line == "close":
        del ends[client]
        client.close()
    elif line == "shutdown":
        client.shutdown(socket.SHUT_WR)
    elif line == "duplicate":
        before, client = client, client.dup()
        del ends[before]
        ends[client] = server
        ends[server] = client
        # It stays open, and nobody looks at it any more.
        SELF.append(before)
    elif line == "fork":
        if os.fork() > 0:
            time.sleep(1000)
        commands.clear()
    elif line == "execute":
        numbers = [client.fileno(), server.fileno()]
        for number in numbers:
            os.set_inheritable(number, True)
        script = SELF[:SELF.index("-c") + 2]
        os.execv(sys.executable, script + ["again"] + [str(number) for number in numbers])
    elif line.startswith("spawn "):
        # The child has the memory of its parent, which waits in the kernel until the child has opened the file.
        actions = [(os.POSIX_SPAWN_CLOSE, one.fileno()) for one in ends]
        actions.append((os.POSIX_SPAWN_OPEN, 0, line.removeprefix("spawn "), os.O_RDONLY, 0))
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
    elif line == "exit":
        sys.exit()


while ends:
    ready, _, _ = select.select(list(ends) + commands, [], [])
    for one in ready:
        if one == 0:
            line = os.read(0, 100).decode().strip()
            if line == "":
                commands.clear()
            obey(line)
            print("done", flush=True)
            break
        data = one.recv(65536)
        if data:
            ends[one].sendall(data)
        else:
            other = ends.pop(one)
            try:
                other.shutdown(socket.SHUT_WR)
            except OSError:
                pass
