"""A worker behind a forward proxy: a tunnel for each request.

tunnel.py PROXY-PORT HOST PORT PAUSE
"""
import http.client, sys, time

while True:
    try:
        c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
        c.set_tunnel(sys.argv[2], int(sys.argv[3]))
        c.request("GET", "/")
        c.getresponse().read()
    except OSError:
        pass
    c.close()
    time.sleep(float(sys.argv[4]))
