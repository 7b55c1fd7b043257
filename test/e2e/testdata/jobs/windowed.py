"""A worker whose limiter counts by windows of the clock: COUNT in SECONDS.

windowed.py HOST PORT COUNT SECONDS
"""
import http.client, os, sys, time

host, port, count, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

window, used, n = 0, 0, 0
while True:
    now = time.time()
    if int(now / seconds) != window:
        window, used = int(now / seconds), 0
    if used == count:
        time.sleep((window + 1) * seconds - now + 0.001)
        continue
    used, n = used + 1, n + 1
    try:
        c = http.client.HTTPConnection(host, port, timeout=30)
        c.request("GET", "/item/%d-%d" % (os.getpid(), n))
        c.getresponse().read()
        c.close()
    except OSError:
        pass
