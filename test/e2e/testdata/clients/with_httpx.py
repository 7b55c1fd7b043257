# SPDX-License-Identifier: Apache-2.0

"""httpx: one client, which has connections of its own. The fourth argument h2
has it offer HTTP/2. It takes the proxy from the environment."""

import asyncio
import sys

import httpx

import lab


async def work(client):
    while (i := lab.take()) is not None:
        answer = await client.get(f"{lab.base}/{i}")
        lab.tell(i, answer.status_code, answer.headers.get("Retry-After"))


async def main():
    limits = httpx.Limits(max_connections=lab.width, max_keepalive_connections=lab.width)
    async with httpx.AsyncClient(http2=sys.argv[4] == "h2", limits=limits, timeout=60) as client:
        await asyncio.gather(*(work(client) for _ in range(lab.width)))


asyncio.run(main())
