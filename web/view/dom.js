/**
 * Elements as functions of state: `h` describes them, `patch` makes the document agree. Text goes in as text nodes, so a
 * name from a stranger is never markup.
 */

/** @typedef {{ update: (data: any) => void, destroy?: () => void }} Island */
/** @typedef {{ create: (element: HTMLElement) => Island, data: unknown }} IslandSpec content an element draws by itself */
/** @typedef {{ tag: string, props: Record<string, any>, children: VNode[] }} VElement */
/** @typedef {VElement | string} VNode */
/** @typedef {VNode | number | null | false | undefined | readonly Child[]} Child */

const SVG = new Set(["svg", "g", "path", "rect", "line", "circle", "polyline", "title"]);
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "disabled", "checked"]);

/** @type {WeakMap<Node, VElement>} */
const described = new WeakMap();
/** @type {WeakMap<Node, Island>} */
const islands = new WeakMap();

/** @param {string} tag @param {Record<string, any> | null} [props] @param {...Child} children @returns {VElement} */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flatten(children) };
}

/** @param {readonly Child[]} children @returns {VNode[]} */
function flatten(children) {
  /** @type {VNode[]} */
  const out = [];
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (typeof child === "number") out.push(String(child));
    else if (typeof child === "string") out.push(child);
    else if (Array.isArray(child)) out.push(...flatten(child));
    else out.push(/** @type {VElement} */ (child));
  }
  return out;
}

/** Make the children of `parent` what `children` says. @param {Element} parent @param {readonly VNode[]} children */
export function patch(parent, children) {
  /** @type {Map<string, Element>} */
  const keyed = new Map();
  for (const node of parent.children) {
    const key = described.get(node)?.props["key"];
    if (key !== undefined) keyed.set(String(key), node);
  }
  // What is gone goes first: the rest then stays where it is, and keeps the focus that a move would take.
  if (keyed.size > 0) {
    const wanted = new Set(children.map((child) => (typeof child === "string" ? undefined : child.props["key"])).filter((key) => key !== undefined).map(String));
    for (const [key, node] of keyed) {
      if (wanted.has(key)) continue;
      keyed.delete(key);
      dispose(node);
      node.remove();
    }
  }
  let next = parent.firstChild;
  for (const child of children) {
    const held = typeof child === "string" ? undefined : child.props["key"] === undefined ? undefined : keyed.get(String(child.props["key"]));
    const node = held ?? next;
    if (node !== null && fits(node, child)) {
      if (node === next) next = next.nextSibling;
      else parent.insertBefore(node, next);
      refresh(node, child);
    } else parent.insertBefore(build(child), next);
  }
  while (next !== null) {
    const gone = next;
    next = next.nextSibling;
    dispose(gone);
    gone.remove();
  }
}

/** @param {Node} node @param {VNode} child */
function fits(node, child) {
  if (typeof child === "string") return node.nodeType === Node.TEXT_NODE;
  const before = described.get(node);
  const island = child.props["island"]?.create;
  return before !== undefined && before.tag === child.tag && before.props["key"] === child.props["key"] && before.props["island"]?.create === island;
}

/** @param {VNode} child @returns {Node} */
function build(child) {
  if (typeof child === "string") return document.createTextNode(child);
  const element = SVG.has(child.tag) ? document.createElementNS(SVG_NAMESPACE, child.tag) : document.createElement(child.tag);
  refresh(element, child);
  return element;
}

/** @param {Node} node @param {VNode} child */
function refresh(node, child) {
  if (typeof child === "string") {
    if (node.nodeValue !== child) node.nodeValue = child;
    return;
  }
  // The very same description: whoever made it kept it because nothing has changed.
  if (described.get(node) === child) return;
  const element = /** @type {HTMLElement} */ (node);
  const before = described.get(node)?.props ?? {};
  for (const name of Object.keys(before)) if (!(name in child.props)) setProp(element, name, undefined, before[name]);
  /** @type {IslandSpec | undefined} */
  const island = child.props["island"];
  if (!island) patch(element, child.children);
  // After the children: a select can only show an option that it has.
  for (const [name, value] of Object.entries(child.props)) if (differs(name, before[name], value) || (AS_PROPERTY.has(name) && !typedInto(element, name))) setProp(element, name, value, before[name]);
  described.set(node, child);
  if (!island) return;
  let live = islands.get(node);
  if (!live) islands.set(node, (live = island.create(element)));
  live.update(island.data);
}

/** Styles are made anew each time; to set them again costs a new layout though they are the same. @param {string} name @param {any} before @param {any} value */
const differs = (name, before, value) => before !== value && (name !== "style" || JSON.stringify(before) !== JSON.stringify(value));

/** Whether a person is writing there: what stands is then theirs until something else is said. @param {HTMLElement} element @param {string} name */
function typedInto(element, name) {
  return name === "value" && element.tagName === "INPUT" && element === document.activeElement;
}

/** @param {HTMLElement} element @param {string} name @param {any} value @param {any} before */
function setProp(element, name, value, before) {
  if (name === "key" || name === "island") return;
  if (name.startsWith("on")) /** @type {any} */ (element)[name] = value ?? null;
  else if (name === "style") {
    for (const property of Object.keys(before ?? {})) if (!(property in (value ?? {}))) element.style.removeProperty(property);
    for (const [property, text] of Object.entries(value ?? {})) element.style.setProperty(property, String(text));
  } else if (AS_PROPERTY.has(name)) {
    if (/** @type {any} */ (element)[name] !== value) /** @type {any} */ (element)[name] = value;
  } else if (value === undefined || value === null || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

/** @param {Node} node */
function dispose(node) {
  islands.get(node)?.destroy?.();
  for (const child of node.childNodes) dispose(child);
}
