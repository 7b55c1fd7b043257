# SPDX-License-Identifier: Apache-2.0
"""TLS in memory, sockets on other threads: hop.py PORT CONNECTIONS REQUESTS

The main thread calls the TLS library, one thread sends and another receives.
"""
import queue
import socket
import ssl
import sys
import threading

port, connections, requests = map(int, sys.argv[1:4])
context = ssl._create_unverified_context()
to_send, to_receive, received = queue.Queue(), queue.Queue(), queue.Queue()


def sender():
    while (job := to_send.get()) is not None:
        job[0].sendall(job[1])


def receiver():
    while (s := to_receive.get()) is not None:
        received.put(s.recv(65536))


threads = [threading.Thread(target=sender), threading.Thread(target=receiver)]
for t in threads:
    t.start()
for i in range(connections):
    s = socket.create_connection(("127.0.0.1", port))
    inc, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    o = context.wrap_bio(inc, out)

    def pump(f):
        while True:
            try:
                return f()
            except ssl.SSLWantReadError:
                if out.pending:
                    to_send.put((s, out.read()))
                to_receive.put(s)
                inc.write(received.get())
            finally:
                if out.pending:
                    to_send.put((s, out.read()))

    pump(o.do_handshake)
    for j in range(requests):
        pump(lambda: o.write(f"GET /{i}/{j} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))
        got = pump(lambda: o.read(65536))
        assert got.startswith(b"HTTP/1.1 429"), got
        while not got.endswith(b"slow down\n"):
            got += pump(lambda: o.read(65536))
to_send.put(None)
to_receive.put(None)
