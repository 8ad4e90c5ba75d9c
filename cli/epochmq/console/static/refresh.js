// Renews the overview every two seconds while somebody sees it.
"use strict";

const PERIOD_MS = 2000;
const TIMEOUT_MS = 30000;
const overview = document.getElementById("overview");
const refreshed = document.getElementById("refreshed");
const pause = document.getElementById("pause");
let paused = false;
let shown = "";

function replace(text) {
  if (text === shown) return;
  const focused = document.activeElement && document.activeElement.id;
  const scrolled = new Map();
  for (const region of overview.querySelectorAll(".scroll")) scrolled.set(region.id, region.scrollLeft);
  overview.innerHTML = text; // the server has escaped every name in it
  shown = text;
  for (const region of overview.querySelectorAll(".scroll")) region.scrollLeft = scrolled.get(region.id) || 0;
  const again = focused && document.getElementById(focused);
  if (again && overview.contains(again)) again.focus({ preventScroll: true });
}

function say(text) {
  if (refreshed.textContent !== text) refreshed.textContent = text;
}

function selects() {
  const selection = document.getSelection();
  return selection && !selection.isCollapsed && overview.contains(selection.anchorNode);
}

async function renew() {
  if (!paused && !document.hidden && !selects()) {
    try {
      const response = await fetch("/overview-fragment", { signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (response.ok || response.status === 503) {
        replace(await response.text());
        say("Renewed every 2 seconds.");
      } else {
        say(`The console responds with ${response.status}.`);
      }
    } catch {
      say("The console does not respond: what you see is old.");
    }
  }
  setTimeout(renew, PERIOD_MS);
}

pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Resume" : "Pause";
  say(paused ? "Paused." : "Renewed every 2 seconds.");
});
document.getElementById("refresh").hidden = false;
setTimeout(renew, PERIOD_MS);
say("Renewed every 2 seconds.");
