// SPDX-License-Identifier: Apache-2.0

// Runs before anything is shown, so that a page that was set to be dark never
// flashes. What the toggle does is in app.js.
"use strict";
try {
  const theme = localStorage.getItem("egressd-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's preference counts.
}
