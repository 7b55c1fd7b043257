# SPDX-License-Identifier: Apache-2.0
"""Requests over a library: lib.py requests|httpx|aiohttp PORT CONNECTIONS REQUESTS"""
import asyncio
import sys
import warnings

warnings.simplefilter("ignore")
name = sys.argv[1]
port, connections, count = map(int, sys.argv[2:5])


def urls(i):
    return [f"https://127.0.0.1:{port}/{i}/{j}" for j in range(count)]


if name == "requests":
    import requests

    for i in range(connections):
        with requests.Session() as s:
            for u in urls(i):
                assert s.get(u, verify=False).status_code == 429
elif name == "httpx":
    import httpx

    for i in range(connections):
        with httpx.Client(verify=False) as s:
            for u in urls(i):
                assert s.get(u).status_code == 429
elif name == "aiohttp":
    import aiohttp

    async def worker(i):
        async with aiohttp.ClientSession() as s:
            for u in urls(i):
                async with s.get(u, ssl=False) as r:
                    assert r.status == 429
                    await r.read()

    async def main():
        await asyncio.gather(*(worker(i) for i in range(connections)))

    asyncio.run(main())
