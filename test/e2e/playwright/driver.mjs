// SPDX-License-Identifier: Apache-2.0

// A browser that does as it is told: reads commands from standard input, one in
// JSON on each line, and answers each with a line, {"value": …} or {"error": "…"}.
// It ends, and the browser with it, when there are no more.
//
//	EGRESSD_PLAYWRIGHT  the folder with node_modules
//	EGRESSD_CHROMIUM    the browser
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const require = createRequire(process.env.EGRESSD_PLAYWRIGHT + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await chromium.launch({ executablePath: process.env.EGRESSD_CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
const pages = new Map(); // by name

const commands = {
  async open({ page, url, width, height, scheme, motion, scale }) {
    const context = await browser.newContext({
      viewport: { width, height }, colorScheme: scheme, reducedMotion: motion ?? "no-preference", deviceScaleFactor: scale ?? 1, locale: "en",
    });
    const p = await context.newPage();
    const entry = { p, context, problems: [] };
    pages.set(page, entry);
    const origin = new URL(url).origin;
    p.on("console", (m) => {
      if (m.type() === "error" || m.type() === "warning") entry.problems.push(`console: ${m.text()} ${m.location().url}`);
    });
    p.on("pageerror", (e) => entry.problems.push(`error: ${e.message}`));
    p.on("request", (r) => {
      if (new URL(r.url()).origin !== origin) entry.problems.push(`request: ${r.url()}`);
    });
    await p.goto(url);
  },
  eval: ({ page, js }) => pages.get(page).p.evaluate(js),
  press: ({ page, key }) => pages.get(page).p.keyboard.press(key),
  type: ({ page, text }) => pages.get(page).p.keyboard.type(text),
  reload: async ({ page }) => { await pages.get(page).p.reload(); },
  shot: async ({ page, path, full }) => { await pages.get(page).p.screenshot({ path, fullPage: full ?? false }); },
  // What was wrong since the last time that this was asked.
  problems: ({ page }) => pages.get(page).problems.splice(0),
  // Violations of WCAG that axe finds. The debugger evaluates it, as the page's
  // own policy lets nothing in.
  async axe({ page }) {
    const { p, context } = pages.get(page);
    const session = await context.newCDPSession(p);
    const run = async (expression) => {
      const r = await session.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
      if (r.exceptionDetails) throw new Error(JSON.stringify(r.exceptionDetails));
      return r.result.value;
    };
    await run(axe + ";undefined");
    const found = await run(`axe.run().then((r) => ({ passes: r.passes.length, violations: r.violations.map((v) =>
      v.id + ": " + v.help + ": " + v.nodes.map((n) => n.target.join(" ")).join(", ")) }))`);
    if (found.passes === 0) throw new Error("axe looked at nothing");
    return found.violations;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command.do](command)) ?? null };
  } catch (e) {
    answer = { error: String(e.message ?? e) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await browser.close();
