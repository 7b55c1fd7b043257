# SPDX-License-Identifier: Apache-2.0
"""Callbacks that use another socket: callback.py PORT CONNECTIONS REQUESTS [late]

The TLS library works in memory and tells of each message while it reads and
writes; that is sent to somebody in cleartext. With late it asks once, says
"ready" and waits for a line.
"""
import socket
import ssl
import sys
import threading

port, connections, requests = map(int, sys.argv[1:4])
ear = socket.create_server(("127.0.0.1", 0))
mouth = socket.create_connection(ear.getsockname())
heard = ear.accept()[0]
threading.Thread(target=lambda: [None for _ in iter(lambda: heard.recv(65536), b"")], daemon=True).start()

context = ssl._create_unverified_context()
told = 0


def tell(*_):
    global told
    told += 1
    mouth.sendall(b"z" * 200)


context._msg_callback = tell
for i in range(connections):
    s = socket.create_connection(("127.0.0.1", port))
    inc, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    o = context.wrap_bio(inc, out)

    def pump(f):
        while True:
            try:
                result = f()
            except ssl.SSLWantReadError:
                if out.pending:
                    s.sendall(out.read())
                inc.write(s.recv(65536))
                continue
            if out.pending:
                s.sendall(out.read())
            return result

    pump(o.do_handshake)
    for j in range(requests):
        pump(lambda: o.write(f"GET /{i}/{j} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))
        got = b""
        while not got.endswith(b"slow down\n"):
            got += pump(lambda: o.read(65536))
        assert got.startswith(b"HTTP/1.1 429"), got
        if "late" in sys.argv and i == j == 0:
            print("ready", flush=True)
            sys.stdin.readline()
assert told > 2 * connections * requests, told
