// SPDX-License-Identifier: Apache-2.0

// The fetch of Node, which knows no proxies.

import { base, take, tell, work } from "./lab.mjs";

await work(async () => {
  for (let i; (i = take()) !== null;) {
    const answer = await fetch(`${base}/${i}`);
    await answer.text();
    tell(i, answer.status, answer.headers.get("retry-after"));
  }
});
process.exit(0);
