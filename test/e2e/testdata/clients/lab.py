# SPDX-License-Identifier: Apache-2.0

"""What the clients in Python have in common.

A client is started with the beginning of its URLs, how many requests it sends
and how many at a time. Request number I goes to the URL's beginning, a slash
and I. HTTPS_PROXY in its environment is a proxy, if there is one. For each
answer it prints a line of JSON; whatever fails ends it.
"""

import base64
import json
import os
import sys
import threading
from urllib.parse import urlsplit

base, count, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
url = urlsplit(base)
proxy = os.environ.get("HTTPS_PROXY") or None

_lock = threading.Lock()
_left = iter(range(count))


def take():
    """The number of the next request, or None."""
    with _lock:
        return next(_left, None)


def tell(i, status, retry_after):
    with _lock:
        print(json.dumps({"i": i, "status": status, "retry_after": retry_after or ""}), flush=True)


def proxy_login(parts):
    """The field with the proxy's user and password, or none."""
    if not parts.username:
        return {}
    login = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    return {"Proxy-Authorization": "Basic " + login}


def run_threads(work):
    """Runs work in as many threads as there are requests at a time."""
    failed = []

    def guarded():
        try:
            work()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=guarded) for _ in range(width)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
