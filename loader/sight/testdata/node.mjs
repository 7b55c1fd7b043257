// SPDX-License-Identifier: Apache-2.0
// Requests of Node: node.mjs https|fetch|http2|short PORT PLAIN CONNECTIONS REQUESTS
import http from 'node:http';
import https from 'node:https';
import http2 from 'node:http2';

process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
process.removeAllListeners('warning');
const [mode] = process.argv.slice(2);
const [port, plain, connections, requests] = process.argv.slice(3).map(Number);

function get(lib, options) {
  return new Promise((resolve, reject) => {
    const req = lib.get({ host: '127.0.0.1', rejectUnauthorized: false, ...options }, (res) => {
      if (res.statusCode !== 429) reject(new Error(`status ${res.statusCode}`));
      res.resume();
      res.on('end', resolve);
    });
    req.on('error', reject);
  });
}

const workers = {
  async https(i) {
    const agent = new https.Agent({ keepAlive: true, maxSockets: 1 });
    for (let j = 0; j < requests; j++) await get(https, { port, agent, path: `/${i}/${j}` });
    agent.destroy();
  },
  async fetch(i) {
    for (let j = 0; j < requests; j++) {
      const res = await fetch(`https://127.0.0.1:${port}/${i}/${j}`);
      if (res.status !== 429) throw new Error(`status ${res.status}`);
      await res.text();
    }
  },
  // Connections for one request, every third in cleartext if PLAIN is given,
  // whose callbacks write to other sockets.
  async short(i) {
    for (let j = 0; j < requests; j++) {
      if (plain && (i + j) % 3 === 0) await get(http, { port: plain, path: `/${i}/${j}` });
      else await get(https, { port, path: `/${i}/${j}`, agent: false });
    }
  },
  async http2(i) {
    const session = http2.connect(`https://127.0.0.1:${port}`, { rejectUnauthorized: false });
    const one = (j) => new Promise((resolve, reject) => {
      const req = session.request({ ':path': `/${i}/${j}` });
      req.on('response', (h) => { if (h[':status'] !== 429) reject(new Error(`status ${h[':status']}`)); });
      req.on('error', reject);
      req.on('end', resolve);
      req.resume();
    });
    await Promise.all(Array.from({ length: requests }, (_, j) => one(j)));
    session.close();
  },
};
await Promise.all(Array.from({ length: connections }, (_, i) => workers[mode](i)));
