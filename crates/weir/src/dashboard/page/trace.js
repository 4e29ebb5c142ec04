// What becomes of a packet: its way through the tables as a picture, and each decision in words.

import { $, h, svg } from "./dom.js";
import { get } from "./api.js";
import { clip, duration, whole } from "./format.js";

const BOX = { width: 168, height: 58, gap: 30 };
const MOST_BOXES = 60;

const form = $("#explain");
const explained = $("#explained");
let turn = 0;

/** The stations of a pass: where the packet comes in, what it meets, and what becomes of it. */
function stations(answer, pass, first) {
  const start = { lines: first ? ["comes in at", answer.port?.name ?? "no port"] : ["comes back from", "connection tracking"], kind: "start" };
  const met = pass.steps.filter((step) => ["table", "bridge", "group"].includes(step.kind));
  // The first step says in which bridge the packet is.
  const shown = (met[0]?.kind === "bridge" ? met.slice(1) : met).map(station);
  const end = { lines: wrap(pass.outcome.text), kind: pass.outcome.dropped ? "end dropped" : "end" };
  const left = shown.length - MOST_BOXES;
  return [start, ...shown.slice(0, MOST_BOXES), ...(left > 0 ? [{ lines: [`${whole(left)} more`], kind: "start" }] : []), end];
}

function station({ kind, text, rule }) {
  if (rule) return { lines: [`table ${rule.table}`, `priority ${rule.priority}`, rule.match || "every packet"], kind };
  return { lines: wrap(text), kind };
}

/** A text in three lines of a box. */
function wrap(text) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && `${lines.at(-1)} ${word}`.length > 25 && lines.length < 3) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines;
}

/** Draws a way as wide as there is room, again when that changes. */
function picture(list) {
  const box = h("div");
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.max(BOX.width + 2, Math.floor(box.clientWidth));
    if (width !== drawn) box.replaceChildren(draw(list, width));
    drawn = width;
  }).observe(box);
  return box;
}

function draw(list, width) {
  const across = Math.max(1, Math.floor((width + BOX.gap) / (BOX.width + BOX.gap)));
  const down = Math.ceil(list.length / across);
  const place = (at) => ({ x: 1 + (at % across) * (BOX.width + BOX.gap), y: 1 + Math.floor(at / across) * (BOX.height + BOX.gap) });
  const drawn = svg("svg", {
    class: "way", role: "img", width, height: down * (BOX.height + BOX.gap) - BOX.gap + 2,
    "aria-label": `The packet's way: ${list.map((station) => station.lines.join(" ")).join(", then ")}`,
  });
  list.forEach((station, at) => {
    const { x, y } = place(at);
    if (at > 0) drawn.append(...arrow(place(at - 1), { x, y }));
    const lines = station.lines.map((line, n) => svg("text", { x: x + 8, y: y + 16 + 16 * n, class: n === 0 && station.kind !== "end" ? "name" : "" }, clip(line, 26)));
    drawn.append(svg("g", { class: station.kind }, svg("title", {}, station.lines.join(" ")),
      svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 4 }), ...lines));
  });
  return drawn;
}

function arrow(from, to) {
  const tip = (x, y, turned) => svg("path", { class: "tip", d: turned ? `M${x - 4} ${y - 7}L${x} ${y}L${x + 4} ${y - 7}Z` : `M${x - 7} ${y - 4}L${x} ${y}L${x - 7} ${y + 4}Z` });
  if (from.y === to.y) {
    const y = from.y + BOX.height / 2;
    return [svg("path", { d: `M${from.x + BOX.width} ${y}H${to.x - 5}` }), tip(to.x, y, false)];
  }
  const [start, end] = [from.x + BOX.width / 2, to.x + BOX.width / 2];
  const between = from.y + BOX.height + BOX.gap / 2;
  return [svg("path", { d: `M${start} ${from.y + BOX.height}V${between}H${end}V${to.y - 5}` }), tip(end, to.y, true)];
}

function step({ depth, kind, text, rule, next }) {
  const li = h("li", { class: kind }, text);
  li.style.setProperty("--depth", Math.min(depth, 12));
  if (rule) li.append(h("span", { class: "code" }, ` → ${rule.actions}`), ` (${whole(rule.packets)} packets)`);
  if (next) li.append(h("span", { class: "otherwise" }, `without it: priority ${next.priority}, `, h("span", { class: "code" }, `${next.match || "every packet"} → ${next.actions}`)));
  return li;
}

function facts(pass) {
  const serving = pass.served_by;
  const list = [
    ["packet", pass.packet],
    pass.error && ["error", pass.error],
    ["decides alike", pass.megaflow],
    ["datapath actions", pass.datapath_actions],
    serving && ["served by", `${serving.ufid}: ${whole(serving.packets)} packets, ${duration(serving.age_s)} old${serving.is_current ? "" : ", about to be brought up to date"}`],
    pass.tiers?.length && ["found in", pass.tiers.map(({ worker, tier }) => `${tier} by worker ${worker}`).join(", ")],
    pass.slow && ["each packet", "is translated anew, in the slow path"],
  ];
  return h("dl", { class: "facts" }, ...list.filter(Boolean).flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "code" }, value)]));
}

function show(answer) {
  const parts = answer.passes.map((pass, at) => {
    const { dropped, text } = pass.outcome;
    const meaning = dropped ? ` – ${dropped.reason}: ${dropped.meaning}` : "";
    const left = pass.steps_left_out ? [h("li", { class: "warning" }, `${whole(pass.steps_left_out)} more steps are left out`)] : [];
    return h("div", {}, pass.heading && h("h3", {}, pass.heading),
      h("p", { class: dropped ? "outcome dropped" : "outcome" }, text.startsWith("dropped") && dropped ? `dropped${meaning}` : text + meaning),
      picture(stations(answer, pass, at === 0)), facts(pass), h("h3", {}, "Step by step"), h("ol", { class: "steps" }, ...pass.steps.map(step), ...left));
  });
  explained.replaceChildren(...parts);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  turn += 1;
  const mine = turn;
  const { bridge, port, packet } = form.elements;
  try {
    const answer = await get("explain", { bridge: bridge.value, port: port.value.trim(), packet: packet.value.trim() });
    if (mine === turn) show(answer);
  } catch (problem) {
    if (mine === turn) explained.replaceChildren(h("p", { class: "problem" }, problem.message));
  }
});

/** Offers these bridges and ports. */
export function offer(bridges, ports) {
  const select = form.elements.bridge;
  const { value } = select;
  select.replaceChildren(...bridges.map((name) => h("option", { value: name }, name)));
  if (bridges.includes(value)) select.value = value;
  const names = () => $("#port-names").replaceChildren(...ports.filter((port) => port.bridge === select.value).map((port) => h("option", { value: port.name })));
  select.onchange = names;
  names();
}
