# SPDX-License-Identifier: Apache-2.0

"""http.client: a connection for each thread."""

import http.client
from urllib.parse import urlsplit

import lab


def connect():
    if not lab.proxy:
        return http.client.HTTPSConnection(lab.url.hostname, lab.url.port, timeout=60)
    parts = urlsplit(lab.proxy)
    c = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=60)
    c.set_tunnel(lab.url.hostname, lab.url.port, lab.proxy_login(parts))
    return c


def work():
    c = connect()
    while (i := lab.take()) is not None:
        c.request("GET", f"{lab.url.path}/{i}", headers={"X-Lab": "http.client"})
        answer = c.getresponse()
        answer.read()
        lab.tell(i, answer.status, answer.getheader("Retry-After"))
    c.close()


lab.run_threads(work)
