// SPDX-License-Identifier: Apache-2.0
// A server of HTTP/1 and HTTP/2 over TLS: server.mjs CERTIFICATE KEY; prints its port.
import fs from 'node:fs';
import http2 from 'node:http2';

const [cert, key] = process.argv.slice(2).map((f) => fs.readFileSync(f));
const server = http2.createSecureServer({ cert, key, allowHTTP1: true }, (req, res) => {
  res.writeHead(429, { 'retry-after': '17' });
  res.end('slow down\n');
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
