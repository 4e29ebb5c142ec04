// The picture of the topology, and who talks to whom.

import { $, cells as setCells, h, keyed, row, say, svg } from "./dom.js";
import { bits, clip, count, short, whole } from "./format.js";
import { choose } from "./graphs.js";
import { layout } from "./layout.js";

/** Pairs that are drawn. The table has more. */
const DRAWN = 8;
/** Ports that are shown one by one because they have had much traffic: as few as there is room for. */
const MOST_SPECIAL = 16;

const box = $("#picture");
const detail = $("#port-detail");

let topology = { bridges: [], ports: [] };
let rates = new Map();
let pairs = [];
const special = new Set();
const unfolded = new Set();
let chosen;
let drawn;
/** What was drawn last, and how wide. */
let signature = "";

const idOf = (port) => `${port.bridge}/${port.name}`;
/** Where a port's name leads, as pairs have no bridge. */
let byName = new Map();

/** Takes an answer of /api/topology. */
export function take(answer) {
  topology = answer;
  topology.bridges.sort((a, b) => (a.name < b.name ? -1 : 1));
  byName = new Map(topology.ports.map((port) => [port.name, port]));
  draw();
}

/** Takes the rates of ports. */
export function takeRates(now) {
  rates = new Map(now.ports.map((port) => [idOf(port), port]));
  update();
}

/** Takes an answer of /api/top?of=pairs. */
export function takePairs(answer) {
  pairs = answer.rows.filter((pair) => pair.packets_per_s > 0);
  for (const { from, to } of pairs.slice(0, DRAWN)) {
    for (const port of [byName.get(from), byName.get(to)]) if (port && special.size < MOST_SPECIAL) special.add(idOf(port));
  }
  keyed($("#pairs tbody"), pairs, (pair) => `${pair.from} ${pair.to}`, () => row(["", "", "number", "number"]),
    (tr, pair) => setCells(tr, [pair.from, pair.to, short(pair.packets_per_s), bits(pair.bytes_per_s)]));
  const part = answer.percent < 99.5 ? ` They carry ${answer.percent.toFixed(0)} % of all packets.` : "";
  say($("#pairs-note"), pairs.length === 0 ? "No traffic between ports just now."
    : `From the ${count(answer.flows, "flow")} with the most traffic.${part}`);
  draw();
}

function draw() {
  const width = Math.floor(box.clientWidth);
  if (width < 100 || topology.bridges.length === 0) {
    if (topology.bridges.length === 0) box.replaceChildren(h("p", { class: "note" }, "There is no bridge."));
    return;
  }
  const wanted = JSON.stringify([topology, [...special], [...unfolded], width]);
  if (wanted !== signature) {
    signature = wanted;
    build(layout(topology, special, unfolded, width), width);
  }
  update();
}

/** Makes the picture anew, and keeps the focus where it was. */
function build(places, width) {
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const picture = svg("svg", { width, height: places.height, viewBox: `0 0 ${width} ${places.height}`, role: "group", "aria-label": "Bridges and their ports" });
  picture.append(...places.panels.map(({ x, y, width: wide, height }) => svg("rect", { class: "bridge", x, y, width: wide, height, rx: 6 })));
  const links = svg("g", { "aria-hidden": "true" });
  picture.append(svg("g", { "aria-hidden": "true" }, ...patches(places), ...mirrors(places)), links, ...places.panels.map(head));
  const elements = new Map();
  for (const cell of places.cells) {
    const element = cellOf(cell);
    elements.set(element.dataset.key, { cell, element });
    picture.append(element);
  }
  box.replaceChildren(picture);
  drawn = { places, links, elements };
  if (focused !== undefined) elements.get(focused)?.element.focus({ preventScroll: true });
}

/** The name of a bridge and what there is to say of it; above the lines, which may pass there. */
function head({ bridge, x, y, width }) {
  const connected = bridge.controllers.filter((controller) => controller.connections > 0).length;
  const controllers = bridge.controllers.length ? `, ${connected} of ${bridge.controllers.length} controllers connected` : "";
  const facts = `${count(bridge.flows, "flow")}, ${count(bridge.macs, "address", "addresses")}, ${bridge.fail_mode}${controllers}`;
  const room = Math.floor((width - 24) / 6.6) - bridge.name.length - 2;
  return svg("g", { class: "head" }, svg("text", { class: "name", x: x + 12, y: y + 20 }, clip(bridge.name, 24),
    svg("tspan", { dx: 8, "font-weight": "normal" }, clip(facts, Math.max(8, room)))));
}

function cellOf(cell) {
  const { port, x, y, width, height } = cell;
  const key = port ? idOf(port) : cell.group;
  const name = port ? port.name : cell.label;
  const act = () => (port ? pick(port) : fold(cell.group));
  const element = svg("g", {
    tabindex: 0, role: "button",
    onclick: act,
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
    },
  }, svg("title"), svg("rect", { x, y, width, height, rx: 4 }),
  svg("text", { class: "name", x: x + 8, y: y + 16 }, clip(name, Math.floor((width - 12) / 7))),
  svg("text", { class: "rate", x: x + 8, y: y + 31 }));
  element.dataset.key = key;
  return element;
}

const middle = (cell) => ({ x: cell.x + cell.width / 2, y: cell.y + cell.height / 2 });

/** A curve from cell to cell that leaves and enters by the gaps between rows. */
function curve(from, to, bend = 0) {
  const [a, b] = [middle(from), middle(to)];
  if (from === to) return `M${a.x - 18} ${from.y}C${a.x - 18} ${from.y - 20} ${a.x + 18} ${from.y - 20} ${a.x + 18} ${from.y}`;
  if (a.y === b.y) {
    // Packets to the right pass below, those to the left above, so that both directions are seen.
    const below = a.x < b.x;
    const edge = below ? from.y + from.height : from.y;
    const depth = (below ? 1 : -1) * (16 + bend);
    return `M${a.x} ${edge}C${a.x} ${edge + depth} ${b.x} ${edge + depth} ${b.x} ${edge + (below ? 2 : -2)}`;
  }
  const down = a.y < b.y;
  const start = down ? from.y + from.height : from.y;
  const end = down ? to.y : to.y + to.height;
  const reach = Math.max(14, Math.abs(end - start) / 2) * (down ? 1 : -1);
  const aside = 10 * (down ? -1 : 1) + bend;
  return `M${a.x + aside} ${start}C${a.x + aside} ${start + reach} ${b.x + aside} ${end - reach} ${b.x + aside} ${end}`;
}

function patches({ place }) {
  const seen = new Set();
  return topology.ports.filter((port) => port.peer).flatMap((port) => {
    const [from, peer] = [place.get(idOf(port)), byName.get(port.peer)];
    const to = peer && place.get(idOf(peer));
    const key = [port.name, port.peer].sort().join(" ");
    if (!from || !to || seen.has(key)) return [];
    seen.add(key);
    return [svg("path", { class: "patch", d: curve(from, to) }, svg("title", {}, `patch from ${port.name} to ${port.peer}`))];
  });
}

function mirrors({ place }) {
  return topology.bridges.flatMap((bridge) => bridge.mirrors.flatMap((mirror) => {
    const output = place.get(`${bridge.name}/${mirror.output_port}`);
    if (!output) return [];
    const names = new Set([...(mirror.sources ?? []), ...(mirror.destinations ?? [])]);
    const from = new Set([...names].map((name) => place.get(`${bridge.name}/${name}`)).filter((cell) => cell && cell !== output));
    // Of all ports: from the bridge itself.
    const all = { x: 12, y: output.y - 30, width: 40, height: 0 };
    const starts = mirror.sources === null || mirror.destinations === null || from.size === 0 ? [all] : [...from].slice(0, 24);
    return starts.map((cell) => svg("path", { class: "mirror", d: curve(cell, output) }, svg("title", {}, `mirror ${mirror.name}`)));
  }));
}

/** Brings texts, colours and links up to date; nothing moves. */
function update() {
  if (!drawn) return;
  for (const { cell, element } of drawn.elements.values()) {
    const members = cell.port ? [cell.port] : cell.members;
    const all = members.map((port) => rates.get(idOf(port))).filter(Boolean);
    const sum = (of) => all.reduce((total, rate) => total + rate[of], 0);
    const link = (port) => rates.get(idOf(port))?.link ?? port.link;
    const bad = members.filter((port) => link(port) !== "up").length;
    const dropped = sum("dropped");
    const state = cell.port ? link(cell.port) : bad === 0 ? "up" : "some-down";
    const kind = cell.port ? (cell.port.remote ? " tunnel" : "") : " group";
    const picked = cell.port && idOf(cell.port) === chosen ? " chosen" : "";
    element.setAttribute("class", `cell ${state}${kind}${picked}${dropped > 0 ? " dropping" : ""}`);
    const traffic = `${bits(sum("rx_bytes"))}↓ ${bits(sum("tx_bytes"))}↑`;
    const text = dropped > 0 ? `${short(dropped)}/s dropped`
      : state !== "up" && cell.port ? state
      : cell.port?.peer ? `patch to ${cell.port.peer}`
      : bad > 0 ? `${whole(bad)} not up, ${traffic}` : traffic;
    say($(".rate", element), clip(text, Math.floor((cell.width - 12) / 5.6)));
    const name = cell.port ? `${cell.port.name}, ${cell.port.type}, ${state}` : `${cell.label}`;
    say($("title", element), `${name}, received ${bits(sum("rx_bytes"))} bit/s, sent ${bits(sum("tx_bytes"))} bit/s, ${short(dropped)} packets/s dropped`);
    if (!cell.port) element.setAttribute("aria-expanded", String(Boolean(cell.open)));
  }
  links();
  showDetail();
}

function links() {
  const cells = pairs.slice(0, DRAWN).map((pair) => {
    const [from, to] = [byName.get(pair.from), byName.get(pair.to)];
    return { pair, from: from && drawn.places.place.get(idOf(from)), to: to && drawn.places.place.get(idOf(to)) };
  }).filter(({ from, to }) => from && to);
  const most = Math.max(1, ...cells.map(({ pair }) => pair.bytes_per_s));
  drawn.links.replaceChildren(...cells.flatMap(({ pair, from, to }, at) => {
    const share = Math.log1p(pair.bytes_per_s) / Math.log1p(most);
    const d = curve(from, to, 3 * (at % 4));
    const [x, y] = d.match(/([\d.-]+) ([\d.-]+)$/).slice(1).map(Number);
    const up = from !== to && (middle(from).y > middle(to).y || (middle(from).y === middle(to).y && middle(from).x < middle(to).x));
    const tip = up ? `M${x - 4} ${y + 7}L${x} ${y}L${x + 4} ${y + 7}Z` : `M${x - 4} ${y - 7}L${x} ${y}L${x + 4} ${y - 7}Z`;
    return [svg("path", { class: "talk", d, "stroke-width": (1 + 3 * share).toFixed(1) }), svg("path", { class: "tip", d: tip })];
  }));
}

function pick(port) {
  chosen = chosen === idOf(port) ? undefined : idOf(port);
  if (chosen) choose(chosen);
  update();
}

function fold(group) {
  if (!unfolded.delete(group)) unfolded.add(group);
  draw();
}

function showDetail() {
  const port = topology.ports.find((candidate) => idOf(candidate) === chosen);
  if (!port) {
    detail.replaceChildren();
    return;
  }
  const rate = rates.get(chosen);
  const vlan = port.tag === null ? port.vlan_mode : `${port.vlan_mode} ${port.tag}`;
  const facts = [
    ["bridge", port.bridge], ["type", port.type], ["OpenFlow port", port.ofport ?? "none"], ["link", rate?.link ?? port.link], ["VLAN", vlan],
    port.peer && ["peer", port.peer], port.remote && ["remote", port.remote], port.error && ["error", port.error],
    rate && ["received", `${short(rate.rx_packets)} packets/s`], rate && ["sent", `${short(rate.tx_packets)} packets/s`],
    rate && ["dropped", `${short(rate.dropped)} packets/s`],
  ].filter(Boolean);
  if (detail.dataset.port !== chosen || detail.children.length === 0) {
    detail.replaceChildren(h("h3", {}, port.name), h("dl"));
    detail.dataset.port = chosen;
  }
  const list = $("dl", detail);
  if (list.children.length !== 2 * facts.length) list.replaceChildren(...facts.flatMap(([name]) => [h("dt", {}, name), h("dd")]));
  facts.forEach(([, value], at) => say(list.children[2 * at + 1], String(value)));
}

new ResizeObserver(draw).observe(box);
