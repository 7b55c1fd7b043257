"""Threads that ask for one thing, all at once, and sleep the same time after
each answer that is a limit.

crowd.py HOST PORT THREADS PAUSE SLEEP
"""
import http.client, sys, threading, time

host, port, threads, pause, nap = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])

def loop():
    while True:
        try:
            c = http.client.HTTPConnection(host, port, timeout=30)
            c.request("GET", "/feed")
            limited = c.getresponse().status == 429
            c.close()
        except OSError:
            limited = True
        time.sleep(nap if limited else pause)

for _ in range(threads):
    threading.Thread(target=loop).start()
