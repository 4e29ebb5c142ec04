// Makes elements. What is shown is only ever set as text, never as markup: names of ports and flows come from others.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (selector, inside = document) => inside.querySelector(selector);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}

/** An element of HTML. Children are elements or texts. */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An element of SVG. */
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Sets a text only where it is another one, so that readers of the screen are not told again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Makes the children of `parent` those of `items`, and keeps those that are there already, by `key`. `make` makes a child, `update` brings
 * one up to date. While the focus is inside, nothing is moved: what is new comes last.
 */
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const children = items.map((item) => {
    const name = String(key(item));
    const child = known.get(name) ?? make(item);
    known.delete(name);
    child.dataset.key = name;
    update(child, item);
    return child;
  });
  for (const gone of known.values()) gone.remove();
  if (parent.contains(document.activeElement)) {
    parent.append(...children.filter((child) => child.parentNode !== parent));
  } else if (children.some((child, at) => parent.children[at] !== child)) {
    parent.replaceChildren(...children);
  }
}

/** A row whose cells are to be filled by `cells`. `classes` are those of the cells. */
export const row = (classes) => h("tr", {}, ...classes.map((name) => h("td", name ? { class: name } : {})));

/** Sets the texts of a row's cells; `undefined` leaves one as it is. */
export function cells(tr, texts) {
  texts.forEach((text, at) => text !== undefined && say(tr.children[at], text));
}
