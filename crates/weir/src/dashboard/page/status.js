// The answer to the first question: are packets lost, and why?

import { $, h, keyed, row, say } from "./dom.js";
import { bits, duration, percent, short, whole } from "./format.js";
import * as graphs from "./graphs.js";

/** Drops that somebody has asked for: by rules, filters, VLANs, or a port that is disabled. All others are losses. */
const DECIDED = new Set(["rule", "ingress_filter", "meter", "vlan_not_allowed", "fragment", "ttl_exceeded", "reflection", "reserved_address", "spanning_tree",
  "mirror_port", "in_port_down", "port_down"]);

const section = $("#status");
const drops = $("#drops");

/** Shows what was measured last. */
export function show(now) {
  say($("#identity"), `${now.version}, up ${duration(now.uptime_s)}`);
  keyed($("#errors"), now.errors, (error) => error, () => h("li"), (li, error) => say(li, `Not in force: ${error}`));
  if (!now.sample) return;
  verdict(now);
  const total = now.stats.total;
  const figures = [
    { id: "rx", name: "received", value: `${short(total.packets)} packets/s` },
    { id: "rx-bits", name: "received", value: `${bits(graphs.latest("rx_bytes"))} bit/s` },
    { id: "tx", name: "sent", value: `${short(total.sent)} packets/s` },
    { id: "tx-bits", name: "sent", value: `${bits(graphs.latest("tx_bytes"))} bit/s` },
    { id: "busy", name: "workers busy", value: percent(total.busy_percent) },
    { id: "misses", name: "misses", value: `${short(total.misses)}/s` },
    { id: "flows", name: "datapath flows", value: whole(now.stats.flows) },
  ];
  keyed($("#figures"), figures, ({ id }) => id, () => h("div", {}, h("dt"), h("dd")), (div, { name, value }) => {
    say(div.children[0], name);
    say(div.children[1], value);
  });
}

function verdict(now) {
  const reasons = now.drops.map((drop) => ({ text: drop.reason, rate: drop.packets_per_s, fine: DECIDED.has(drop.reason), meaning: drop.meaning }));
  const add = (text, rate, meaning) => rate > 0 && reasons.push({ text, rate, fine: false, meaning });
  add("not sent by ports", graphs.latest("tx_dropped"), "Ports did not take the packets.");
  add("by devices on reception", graphs.latest("rx_dropped"), "The device, its driver or its queue dropped them before Weir could take them.");
  reasons.sort((a, b) => a.fine - b.fine || b.rate - a.rate);
  const sum = (list) => list.reduce((all, reason) => all + reason.rate, 0);
  const lost = sum(reasons.filter((reason) => !reason.fine));
  const all = sum(reasons);
  section.className = lost > 0 ? "lost" : all > 0 ? "decided" : "fine";
  const share = now.stats.total.packets > 0 ? ` (${percent(Math.min(100, (100 * all) / now.stats.total.packets))} of what comes in)` : "";
  say($("#verdict"), lost > 0 ? `${short(lost)} packets/s are lost${lost === all ? share : ""}`
    : all > 0 ? `No packets are lost; ${short(all)}/s are dropped as configured${share}` : "No packets are dropped");
  const hour = graphs.total("dropped") + graphs.total("tx_dropped") + graphs.total("rx_dropped");
  const before = `${whole(hour)} dropped in the last ${graphs.reach() < 90 ? "minute" : duration(60 * Math.round(graphs.reach() / 60))}.`;
  const why = reasons.slice(0, 3).map((reason) => `${reason.text} ${short(reason.rate)}/s: ${reason.meaning}`).join("  ");
  say($("#verdict-detail"), [why, before].filter(Boolean).join("  "));
}

const where = ({ in_port: from, out_port: to }) => [from && `from ${from}`, to && `to ${to}`].filter(Boolean).join(", ") || "–";

/** What decided a drop, in words. */
function rule(found) {
  if (!found) return "";
  if (found === "others") return "other flows";
  if (found.ingress_filter !== undefined) return `ingress filter: ${found.ingress_filter}`;
  const { bridge, table, flow } = found.flow;
  if (!flow) return `${bridge} table=${table}: no flow`;
  return `${bridge} table=${table} cookie=0x${BigInt(flow.cookie).toString(16)} priority=${flow.priority}${flow.match ? `,${flow.match}` : ""}`;
}

/** Shows an answer of /api/top?of=drops. */
export function showDrops(answer) {
  const rows = answer.rows.filter((drop) => drop.packets > 0);
  drops.hidden = rows.length === 0;
  const key = (drop) => [drop.stage, drop.reason, drop.in_port, drop.out_port, JSON.stringify(drop.rule)].join();
  keyed($("tbody", drops), rows, key, () => {
    const tr = row(["number", "wrap", "wrap"]);
    tr.children[0].append(h("b"), h("span", { class: "more" }));
    tr.children[1].append(h("b"), h("span", { class: "more" }));
    tr.children[2].append(h("span"), h("span", { class: "more code" }));
    return tr;
  }, (tr, drop) => {
    const parts = [[short(drop.packets_per_s), `${whole(drop.packets)} in all`], [drop.reason, drop.meaning], [where(drop), rule(drop.rule)]];
    parts.forEach((texts, at) => texts.forEach((text, line) => say(tr.children[at].children[line], text)));
    tr.children[0].children[0].classList.toggle("bad", drop.packets_per_s > 0 && !DECIDED.has(drop.reason));
  });
}
