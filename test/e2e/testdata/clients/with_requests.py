# SPDX-License-Identifier: Apache-2.0

"""requests: a session for each thread. It takes the proxy from the environment."""

import requests

import lab


def work():
    with requests.Session() as session:
        while (i := lab.take()) is not None:
            answer = session.get(f"{lab.base}/{i}", timeout=60)
            lab.tell(i, answer.status_code, answer.headers.get("Retry-After"))


lab.run_threads(work)
