"""A worker with a limiter of its own: one job, a pause, the next job.

worker.py HOST PORT PAUSE [RETRY]: a job that is limited is given up or, with
RETRY, tried again after so many seconds, whatever the answer asks for.
"""
import http.client, os, sys, time

host, port, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
retry = float(sys.argv[4]) if len(sys.argv) > 4 else None

def get(path):
    try:
        c = http.client.HTTPConnection(host, port, timeout=30)
        c.request("GET", path)
        status = c.getresponse().status
        c.close()
        return status
    except OSError:
        return 0

n = 0
while True:
    n += 1
    path = "/item/%d-%d" % (os.getpid(), n)
    while get(path) == 429 and retry is not None:
        time.sleep(retry)
    time.sleep(pause)
