// Asks the switch every few seconds, and has the parts of the page show what it says. While the page is hidden, nothing is asked.

import { $, say } from "./dom.js";
import { bear, bears, get } from "./api.js";
import { clock } from "./format.js";
import * as flows from "./flows.js";
import * as graphs from "./graphs.js";
import * as ports from "./ports.js";
import * as status from "./status.js";
import * as tables from "./tables.js";
import * as topology from "./topology.js";
import * as trace from "./trace.js";
import * as workers from "./workers.js";

/** How often is asked, in milliseconds: as often as the switch measures; sooner until it has done so for the first time. */
const INTERVAL = 5000;
const SOON = 1000;
/** After so long the topology is asked for, even if the configuration has not changed: links and addresses have. */
const TOPOLOGY = 60_000;

const connection = $("#connection");
const login = $("#login");
const content = $("#content");

let daemon;
let changes;
let drawnAt = 0;
let timer;
let busy = false;
let ranking = false;

async function takeHistory() {
  const answer = await get("history", { after: graphs.last() || undefined });
  if (!graphs.take(answer)) {
    graphs.forget();
    graphs.take(await get("history"));
  }
}

async function takeTopology(now) {
  // A port that cannot be opened is no change of what is in force, but it is there.
  const known = `${now.changes} ${now.ports.map((port) => `${port.bridge}/${port.name} ${port.link}`).join()}`;
  if (known === changes && Date.now() - drawnAt < TOPOLOGY) return;
  const answer = await get("topology");
  [changes, drawnAt] = [known, Date.now()];
  topology.take(answer);
  const names = answer.bridges.map((bridge) => bridge.name);
  flows.offer(names);
  trace.offer(names, answer.ports);
}

/** Asks for the rankings. They take a second or more, and longer where there are very many flows, so nothing waits for them. */
async function rank() {
  if (ranking) return;
  ranking = true;
  const asked = [
    get("top", { of: "drops", most: 8 }).then(status.showDrops),
    get("top", { of: "pairs", most: 12 }).then(topology.takePairs),
  ];
  // One that is refused or late leaves what was there; that nobody answers is said by others.
  for (const { reason } of await Promise.allSettled(asked)) if (reason && reason.status === undefined) console.error(reason);
  ranking = false;
}

/** Asks for everything else once. */
async function refresh() {
  const now = await get("now");
  if (now.started !== daemon) {
    graphs.forget();
    [daemon, changes] = [now.started, undefined];
  }
  await takeHistory();
  await takeTopology(now);
  status.show(now);
  ports.show(now);
  workers.show(now);
  topology.takeRates(now);
  tables.show(await get("tables"));
  connection.className = "";
  say(connection, now.sample ? `as of ${clock(now.time)}` : "measuring …");
  rank();
  document.documentElement.dataset.sample = now.sample;
  return now.sample > 0;
}

function failed(problem) {
  const locked = problem.status === 401;
  login.hidden = !locked;
  content.hidden = locked;
  if (locked) {
    say($("#login-problem"), bears() ? "This is not the token." : "");
    say(connection, "");
    return;
  }
  // A mistake of this page.
  if (problem.status === undefined) console.error(problem);
  connection.className = "stale";
  say(connection, `${problem.status === 0 ? "The switch does not answer" : problem.message}; tried at ${clock(Date.now() / 1000)}`);
}

async function round() {
  clearTimeout(timer);
  if (document.hidden || busy) return;
  busy = true;
  let pause = INTERVAL;
  try {
    const measured = await refresh();
    login.hidden = true;
    content.hidden = false;
    if (!measured) pause = SOON;
  } catch (problem) {
    failed(problem);
  } finally {
    busy = false;
  }
  if (login.hidden) timer = setTimeout(round, pause);
}

login.addEventListener("submit", (event) => {
  event.preventDefault();
  bear($("#token").value.trim());
  round();
});
document.addEventListener("visibilitychange", round);
round();
