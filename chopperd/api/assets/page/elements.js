// Elements as plain objects, and a page that is changed in place: focus and selection stay.

const SVG = "http://www.w3.org/2000/svg";
const given = new WeakMap(); // element -> the attributes and the key that it was given

// An element: attributes by name; `on...` are listeners, `style` holds custom properties, `key`
// tells an element from its siblings. Text is text, whatever it holds: nothing is parsed as HTML.
export function h(tag, attributes, ...children) {
  return { tag, attributes: attributes ?? {}, children: children.flat(Infinity) };
}

// Makes `parent` hold these children: what is there already is changed, not made again.
export function show(parent, ...children) {
  const wanted = children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  const stay = new Set(wanted.map((each) => each.attributes?.key));
  const keyed = new Map();
  for (const node of [...parent.childNodes]) {
    const key = given.get(node)?.key;
    // What goes, goes first: what stays is then not moved, which would cost it the focus.
    if (key !== undefined && !stay.has(key)) node.remove();
    else if (key !== undefined) keyed.set(key, node);
  }
  let next = parent.firstChild;
  for (const each of wanted) {
    const node = reusable(each, keyed, next) ?? made(each, parent);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
    fill(node, each);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

function reusable(wanted, keyed, next) {
  const key = wanted.attributes?.key;
  const node = key === undefined ? next : keyed.get(key);
  if (!node) return null;
  if (typeof wanted !== "object") return node.nodeType === Node.TEXT_NODE ? node : null;
  const isSame = node.nodeType === Node.ELEMENT_NODE && node.localName === wanted.tag;
  return isSame && given.get(node)?.key === key ? node : null;
}

function made(wanted, parent) {
  if (typeof wanted !== "object") return document.createTextNode("");
  const isSvg = wanted.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  return isSvg ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag);
}

function fill(node, wanted) {
  if (typeof wanted !== "object") {
    if (node.data !== String(wanted)) node.data = String(wanted);
    return;
  }
  const before = given.get(node) ?? {};
  for (const name of Object.keys(before)) if (!(name in wanted.attributes)) set(node, name, null);
  for (const [name, value] of Object.entries(wanted.attributes)) {
    if (before[name] !== value || name === "style") set(node, name, value);
  }
  given.set(node, wanted.attributes);
  if (!("value" in wanted.attributes && wanted.tag === "input")) show(node, wanted.children);
}

function set(node, name, value) {
  if (name === "key") return;
  if (name.startsWith("on")) node[name] = value;
  else if (name === "style") for (const [key, to] of Object.entries(value ?? {})) node.style.setProperty(key, to);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}
