// Elements without a framework, and without markup made of text: what comes from data is always text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", Array.isArray(value) ? value.filter(Boolean).join(" ") : value);
    else if (name === "css") for (const [property, given] of Object.entries(value)) element.style.setProperty(property, given);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

export function put(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

export const byId = (id) => document.getElementById(id);

// The picture of a rule comes as SVG with a style sheet of its own, which the page's policy forbids: the shapes are taken
// and the page's own style sheet colours them. Anything but shapes and texts is left behind.
const SHAPES = new Set("svg g path rect circle line polygon polyline text tspan title defs marker".split(" "));

export function drawing(text) {
  const bare = text.replace(/<style>[^]*?<\/style>/g, "").replace(/ style="[^"]*"/g, "");
  const parsed = new DOMParser().parseFromString(bare, "image/svg+xml");
  const root = parsed.documentElement;
  if (root.nodeName !== "svg") return null;
  for (const node of [...root.querySelectorAll("*")]) {
    if (!SHAPES.has(node.nodeName)) node.remove();
    else for (const { name } of [...node.attributes]) if (name.startsWith("on") || name === "style" || name === "href") node.removeAttribute(name);
  }
  const shown = document.importNode(root, true);
  shown.setAttribute("class", "automaton");
  return shown;
}

// Calls `work` when `wait` ms have passed without another call.
export function debounced(work, wait) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), wait);
  };
}
