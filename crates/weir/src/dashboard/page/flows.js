// Searches flows by words of their text. The switch looks at some thousands of flows for each request, and says where to go on.

import { $, h, say } from "./dom.js";
import { get } from "./api.js";
import { count, whole } from "./format.js";

const form = $("#search");
const found = $("#found");
const results = $("#results");
const more = $("#more");

let asked = {};
let next;
let looked = 0;
/** The last search counts: answers to others come too late. */
let turn = 0;

function item(flow) {
  const counts = `${count(flow.packets, "packet")}, ${count(flow.bytes, "byte")}`;
  return h("li", {}, h("p", { class: "count" }, flow.bridge ? `${flow.bridge}: ${counts}` : counts), h("p", { class: "code" }, flow.text));
}

async function search(from) {
  turn += 1;
  const mine = turn;
  say(found, "Searching …");
  more.hidden = true;
  let answer;
  try {
    answer = await get("flows", { ...asked, from });
  } catch (problem) {
    if (mine === turn) {
      found.className = "problem";
      say(found, problem.message);
    }
    return;
  }
  if (mine !== turn) return;
  found.className = "";
  if (from === undefined) {
    results.replaceChildren();
    looked = 0;
  }
  results.append(...answer.rows.map(item));
  looked += answer.looked_at;
  next = answer.next ?? undefined;
  more.hidden = next === undefined;
  say(found, `${count(results.children.length, "flow")} found among ${whole(looked)}${next === undefined ? "." : " so far."}`);
}

/** Lists flows without words: those of a table, for instance. */
export function list({ of, bridge, table }) {
  const { elements } = form;
  Object.assign(elements.text, { value: "" });
  elements.of.value = of;
  elements.bridge.value = bridge;
  elements.table.value = table;
  $("#flows").scrollIntoView();
  elements.text.focus({ preventScroll: true });
  submit();
}

function submit() {
  const { text, of, bridge, table } = form.elements;
  const ofTables = of.value === "openflow";
  asked = { of: of.value, text: text.value, bridge: ofTables ? bridge.value : "", table: ofTables ? table.value : "" };
  search();
}

/** Offers these bridges. */
export function offer(bridges) {
  const select = form.elements.bridge;
  const { value } = select;
  select.replaceChildren(h("option", { value: "" }, "all"), ...bridges.map((name) => h("option", { value: name }, name)));
  select.value = bridges.includes(value) ? value : "";
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
form.elements.of.addEventListener("change", ({ target }) => {
  for (const name of ["bridge", "table"]) form.elements[name].disabled = target.value !== "openflow";
});
more.addEventListener("click", () => search(next));
