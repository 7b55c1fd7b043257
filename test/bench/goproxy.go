// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	"golang.org/x/time/rate"
)

// goProxyCommand makes this program the proxy: bench goproxy LISTEN ORIGIN.
const goProxyCommand = "goproxy"

// serveGoProxy is the limiting reverse proxy that a Go programmer writes from
// the standard parts: one limiter per host in a map.
func serveGoProxy(listen, origin string) error {
	target, err := url.Parse(origin)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 64, // the default of 2 would close most connections
			DisableCompression:  true,
		},
	}
	var lanes sync.Map // host → *rate.Limiter
	return http.ListenAndServe(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lane, ok := lanes.Load(r.Host)
		if !ok {
			lane, _ = lanes.LoadOrStore(r.Host, rate.NewLimiter(1e9, 1e9))
		}
		if !lane.(*rate.Limiter).Allow() {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
}
