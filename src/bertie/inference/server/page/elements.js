// Building blocks of the page. Texts become text nodes only, never markup.

// Create an element. Properties are attributes, but: `on…` are listeners, `style` is an object of
// style properties, and false, null and undefined are left out.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  setProperties(element, properties);
  for (const child of children.flat()) { // one by one: a call with 200,000 arguments overflows the stack
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

export function makeSvg(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setProperties(element, properties);
  element.append(...children);
  return element;
}

function setProperties(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, setting] of Object.entries(value)) element.style.setProperty(key, setting);
    } else element.setAttribute(name, value === true ? "" : value);
  }
}

// 0.0312 → "3.1 %", with a no-break space.
export const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

// −0.0001 → "0.000", −0.25 → "−0.250"
export const fixed = (number, digits = 3) =>
  number.toFixed(digits).replace(/^-(?=[0.]+$)/, "").replace("-", "−");

// "1 token", "2 tokens"
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

const track = (share) =>
  make("span", { class: "track", "aria-hidden": "true" },
    make("span", { style: { width: `${100 * Math.min(1, Math.max(0, share))}%` } }));

// A list of names with bars. Rows: {name, share, value?, strong?, onclick?, action?}; rows with
// `onclick` are buttons, and `action` tells a screen reader what they do.
export function bars(rows, properties = {}) {
  return make("ol", { class: "bars", ...properties }, rows.map((row) => {
    const parts = [
      make("span", { class: "name" }, row.name),
      track(row.share),
      make("span", { class: "value" }, row.value ?? percent(row.share)),
    ];
    const content = row.onclick
      ? make("button", { type: "button", onclick: row.onclick, title: row.action }, parts)
      : make("div", {}, parts);
    return make("li", { class: row.strong ? "strong" : null }, content);
  }));
}

// A table that scrolls inside its own frame where the screen is narrow.
export function table(headings, rows, caption) {
  const head = headings.map(({ name, number }) =>
    make("th", { scope: "col", class: number ? "number" : null }, name));
  const body = rows.map((cells) => make("tr", {}, cells.map((cell, column) =>
    make("td", { class: headings[column].number ? "number" : null }, cell))));
  return frame(caption, make("table", {},
    make("caption", { class: "unseen" }, caption),
    make("thead", {}, make("tr", {}, head)), make("tbody", {}, body)));
}

export const frame = (label, ...children) =>
  make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, children);

// One stop of the Tab key for a group of buttons: arrow keys, Home and End move within it.
// `columns` is the number of buttons in a row of a grid.
export function roving(container, buttons, { columns = 1, start = 0, onmove } = {}) {
  buttons.forEach((button, index) => { button.tabIndex = index === start ? 0 : -1; });
  const move = (to) => {
    const target = Math.min(buttons.length - 1, Math.max(0, to));
    buttons.forEach((button, index) => { button.tabIndex = index === target ? 0 : -1; });
    buttons[target].focus();
    onmove?.(target);
  };
  container.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target.closest("button"));
    const targets = {
      ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1,
      ArrowDown: at + columns < buttons.length ? at + columns : at,
      ArrowUp: at - columns >= 0 ? at - columns : at,
    };
    if (at < 0 || !(event.key in targets) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    move(targets[event.key]);
  });
  container.addEventListener("focusin", (event) => {
    const at = buttons.indexOf(event.target);
    if (at >= 0) buttons.forEach((button, index) => { button.tabIndex = index === at ? 0 : -1; });
  });
}

// A text with spans of it marked. Marks: {start, end, label?, className?}; start and end are code
// points, as in Python, and JavaScript counts UTF-16 units.
export function marked(text, marks) {
  const points = [...text];
  const slice = (start, end) => points.slice(start, end).join("");
  const parts = [];
  let done = 0;
  for (const { start, end, label, className } of [...marks].sort((a, b) => a.start - b.start)) {
    if (start < done) continue; // overlaps the mark before it
    parts.push(slice(done, start));
    parts.push(make("mark", { class: className }, slice(start, end),
      label ? [" ", make("span", { class: "tag" }, label)] : null)); // the space is copied with the text
    done = end;
  }
  return [...parts, slice(done, points.length)];
}
