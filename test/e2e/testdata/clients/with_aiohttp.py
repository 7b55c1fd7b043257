# SPDX-License-Identifier: Apache-2.0

"""aiohttp: one session. It is told to take the proxy from the environment."""

import asyncio

import aiohttp

import lab


async def work(session):
    while (i := lab.take()) is not None:
        async with session.get(f"{lab.base}/{i}") as answer:
            await answer.read()
            lab.tell(i, answer.status, answer.headers.get("Retry-After"))


async def main():
    connector = aiohttp.TCPConnector(limit=lab.width)
    async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
        await asyncio.gather(*(work(session) for _ in range(lab.width)))


asyncio.run(main())
