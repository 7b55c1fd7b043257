// SPDX-License-Identifier: Apache-2.0

// node:http2: one session, several streams at a time.

import http2 from "node:http2";
import { proxy, take, tell, tunnel, url, work } from "./lab.mjs";

async function session() {
  if (!proxy) return http2.connect(url.origin);
  const socket = await new Promise((done, failed) => {
    tunnel({ ALPNProtocols: ["h2"] }, (err, socket) => err ? failed(err) : done(socket));
  });
  return http2.connect(url.origin, { createConnection: () => socket });
}

const client = await session();
client.on("error", (e) => { throw e; });

function get(i) {
  return new Promise((done, failed) => {
    const request = client.request({ ":path": `${url.pathname}/${i}` });
    let head;
    request.on("response", (fields) => { head = fields; });
    request.on("data", () => {});
    request.on("end", () => {
      tell(i, head[":status"], head["retry-after"]);
      done();
    });
    request.on("error", failed);
    request.end();
  });
}

await work(async () => {
  for (let i; (i = take()) !== null;) await get(i);
});
client.close();
