# SPDX-License-Identifier: Apache-2.0
"""Requests over http.client: blocking.py PORT CONNECTIONS REQUESTS"""
import http.client
import ssl
import sys

port, connections, requests = map(int, sys.argv[1:4])
context = ssl._create_unverified_context()
for i in range(connections):
    c = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    for j in range(requests):
        c.request("GET", f"/{i}/{j}")
        r = c.getresponse()
        assert r.status == 429, r.status
        r.read()
    c.close()
