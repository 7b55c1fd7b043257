// SPDX-License-Identifier: Apache-2.0

// What the clients in Node have in common: arguments and output are those of
// the clients in Python.

import http from "node:http";
import tls from "node:tls";

const [, , text, n, c] = process.argv;

export const base = text;
export const url = new URL(text);
export const count = Number(n);
export const width = Number(c);
export const proxy = process.env.HTTPS_PROXY ? new URL(process.env.HTTPS_PROXY) : null;

let next = 0;

// take is the number of the next request, or null.
export function take() {
  return next < count ? next++ : null;
}

export function tell(i, status, retryAfter) {
  console.log(JSON.stringify({ i, status: Number(status), retry_after: retryAfter ?? "" }));
}

// work runs one as many times as there are requests at a time.
export async function work(one) {
  await Promise.all(Array.from({ length: width }, one));
}

// tunnel asks the proxy for a connection to the origin and begins TLS on it.
export function tunnel(options, done) {
  const path = url.host;
  const headers = { Host: path };
  if (proxy.username) {
    headers["Proxy-Authorization"] = "Basic " + Buffer.from(proxy.username + ":" + proxy.password).toString("base64");
  }
  http.request({ host: proxy.hostname, port: proxy.port, method: "CONNECT", path, headers, agent: false })
    .on("connect", (answer, socket) => {
      if (answer.statusCode !== 200) done(new Error("CONNECT: " + answer.statusCode));
      else done(null, tls.connect({ ...options, socket, servername: url.hostname }));
    })
    .on("error", done)
    .end();
}
