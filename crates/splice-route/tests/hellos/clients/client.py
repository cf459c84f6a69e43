"""A TLS client of Python's standard library that only says hello. Usage: client.py PORT [ADDRESS]"""

import socket
import ssl
import sys

plain = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
context = ssl.create_default_context()
if len(sys.argv) == 2:
    context.set_alpn_protocols(["http/1.1"])
context.wrap_socket(plain, server_hostname=(sys.argv[2:] or ["www.example.org"])[0])
