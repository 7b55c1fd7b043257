// SPDX-License-Identifier: Apache-2.0

// node:https with an agent that keeps connections.

import https from "node:https";
import { base, proxy, take, tell, tunnel, width, work } from "./lab.mjs";

class Tunnels extends https.Agent {
  createConnection(options, done) {
    tunnel({}, done);
  }
}

const agent = new (proxy ? Tunnels : https.Agent)({ keepAlive: true, maxSockets: width });

function get(i) {
  return new Promise((done, failed) => {
    https.get(`${base}/${i}`, { agent }, (answer) => {
      answer.resume();
      answer.on("end", () => {
        tell(i, answer.statusCode, answer.headers["retry-after"]);
        done();
      });
    }).on("error", failed);
  });
}

await work(async () => {
  for (let i; (i = take()) !== null;) await get(i);
});
agent.destroy();
