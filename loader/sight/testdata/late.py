# SPDX-License-Identifier: Apache-2.0
"""Connections that exist before anybody looks: late.py blocking|asyncio PORT CONNECTIONS REQUESTS

Opens its connections and asks once on each, says "ready", waits for a line,
and asks on.
"""
import asyncio
import os
import ssl
import socket
import sys

mode = sys.argv[1]
port, connections, requests = map(int, sys.argv[2:5])
context = ssl._create_unverified_context()


def request(i, j):
    return f"GET /{os.getpid()}/{i}/{j} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def blocking():
    conns = [context.wrap_socket(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]

    def ask(j):
        for i, c in enumerate(conns):
            c.sendall(request(i, j))
            got = b""
            while not got.endswith(b"slow down\n"):
                got += c.recv(65536)
            assert got.startswith(b"HTTP/1.1 429"), got

    ask(0)
    print("ready", flush=True)
    sys.stdin.readline()
    if "fork" in sys.argv:
        # The child goes on with what it inherited.
        if os.fork() != 0:
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    for j in range(1, requests):
        ask(j)


async def asynchronous():
    conns = [await asyncio.open_connection("127.0.0.1", port, ssl=context) for _ in range(connections)]

    async def ask(i, j):
        r, w = conns[i]
        w.write(request(i, j))
        head = await r.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429"), head
        await r.readuntil(b"slow down\n")

    await asyncio.gather(*(ask(i, 0) for i in range(connections)))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for j in range(1, requests):
        await asyncio.gather(*(ask(i, j) for i in range(connections)))


asyncio.run(asynchronous()) if mode == "asyncio" else blocking()
