# SPDX-License-Identifier: Apache-2.0

"""asyncio: streams, HTTP written by hand, all connections on one thread."""

import asyncio
import ssl
from urllib.parse import urlsplit

import lab


async def connect(context):
    if not lab.proxy:
        return await asyncio.open_connection(lab.url.hostname, lab.url.port, ssl=context)
    parts = urlsplit(lab.proxy)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    login = "".join(f"{k}: {v}\r\n" for k, v in lab.proxy_login(parts).items())
    writer.write(f"CONNECT {lab.url.netloc} HTTP/1.1\r\nHost: {lab.url.netloc}\r\n{login}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if int(head.split()[1]) != 200:
        raise OSError(head.decode())
    await writer.start_tls(context, server_hostname=lab.url.hostname)
    return reader, writer


async def work(context):
    reader, writer = await connect(context)
    while (i := lab.take()) is not None:
        writer.write(f"GET {lab.url.path}/{i} HTTP/1.1\r\nhost: {lab.url.netloc}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        await reader.readexactly(int(fields["content-length"]))
        lab.tell(i, int(head[0].split()[1]), fields.get("retry-after"))
    writer.close()


async def main():
    context = ssl.create_default_context()
    await asyncio.gather(*(work(context) for _ in range(lab.width)))


asyncio.run(main())
