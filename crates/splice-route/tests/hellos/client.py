"""Sends a hello to 127.0.0.1. Usage: client.py PORT NAME NEWEST [ALPN...]"""

import socket
import ssl
import sys

port, name, newest, *alpn = sys.argv[1:]
context = ssl.create_default_context()
context.check_hostname = False
context.maximum_version = ssl.TLSVersion[newest]
if alpn:
    context.set_alpn_protocols(alpn)
with socket.create_connection(("127.0.0.1", int(port))) as connection:
    try:
        context.wrap_socket(connection, server_hostname=name or None)
    except OSError:
        pass  # Nobody answers.
