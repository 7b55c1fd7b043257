# SPDX-License-Identifier: Apache-2.0
"""Calls of a TLS library in memory, without sockets: calls.py

Reads lines "SIZE N" and answers each with the processor seconds that N writes and as
many reads of SIZE bytes took.
"""
import ssl
import sys
import time

cert, key = sys.argv[1:3]
ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
ctx.load_cert_chain(cert, key)
to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
client = ssl._create_unverified_context().wrap_bio(to_client, to_server)
server = ctx.wrap_bio(to_server, to_client, server_side=True)
for _ in range(3):
    for end in client, server:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
client.write(b"GET / HTTP/1.1\r\n\r\n")
server.read()
for line in sys.stdin:
    size, n = map(int, line.split())
    data = b"x" * size
    began = time.process_time()
    for _ in range(n):
        server.write(data)
        client.read(size)
    print(time.process_time() - began, flush=True)
