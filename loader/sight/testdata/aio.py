# SPDX-License-Identifier: Apache-2.0
"""Connections on one thread: aio.py PORT PLAIN CONNECTIONS REQUESTS

Every third connection is cleartext, to PLAIN, if that is not 0.
"""
import asyncio
import ssl
import sys

port, plain, connections, requests = map(int, sys.argv[1:5])
context = ssl._create_unverified_context()


async def worker(i):
    if plain and i % 3 == 0:
        r, w = await asyncio.open_connection("127.0.0.1", plain)
    else:
        r, w = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    for j in range(requests):
        w.write(f"GET /{i}/{j} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await r.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429"), head
        length = [int(f.split(b":")[1]) for f in head.split(b"\r\n") if f.lower().startswith(b"content-length")]
        await r.readexactly(length[0])
    w.close()


async def main():
    tasks = set()
    for i in range(connections):
        if len(tasks) >= 50:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for d in done:
                d.result()
        tasks.add(asyncio.ensure_future(worker(i)))
    await asyncio.gather(*tasks)


asyncio.run(main())
