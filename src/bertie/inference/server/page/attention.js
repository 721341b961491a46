// Attention: every head of every layer as a small picture, and one head in full.

import { count, frame, make, makeSvg, percent, roving } from "./elements.js";
import { measurePatterns } from "./patterns.js";

const FAINT = 0.03; // lines and shares below this weight are not drawn
const SHOWN = 3; // targets named for each token

export const attention = {
  name: "attention",
  title: "Attention",
  about: "Where each token looks, in every head of every layer, in a forward pass over your text.",
  button: "Compute",
  fits: (methods) => methods.has("attention"),
  fields: [
    { name: "text", label: "Text", rows: 2,
      example: "The cat sat on the mat because the cat was tired." },
    { name: "pair", label: "Second text", rows: 1, optional: true },
  ],
  async run({ values: { text, pair }, panel, post }) {
    const found = await post("attention", { inputs: pair.trim() ? { text, pair } : { text } });
    const view = new View(found, panel);
    const { attentions, tokens } = found;
    return {
      summary: `${count(attentions.length, "layer")}, ${count(attentions[0].length, "head")} each, `
        + count(tokens.length, "token"),
      nodes: view.nodes,
    };
  },
};

// What is shown of one answer. Layers and heads are counted from 1 on the page and in its address.
class View {
  constructor({ tokens, attentions }, panel) {
    Object.assign(this, { tokens, attentions, panel });
    this.patterns = measurePatterns(tokens, attentions);
    this.detail = make("div", { class: "head-detail" });
    this.grid = this.#makeGrid();
    const within = (value, length) => Math.min(Math.max(Number(value) || 1, 1), length) - 1;
    const { layer, head } = panel.state;
    const strongest = this.patterns[0].heads[0] ?? { layer: 0, head: 0 };
    this.select(layer ? within(layer, attentions.length) : strongest.layer,
      head ? within(head, attentions[0].length) : strongest.head);
    this.nodes = [
      make("h3", {}, "Known patterns"), this.#makePatterns(),
      make("h3", {}, "All heads"), frame("All heads", this.grid), this.detail,
    ];
  }

  // The patterns that a head shows.
  names(layer, head, key) {
    return this.patterns
      .filter(({ heads }) => heads.some((each) => each.layer === layer && each.head === head && each.found))
      .map(({ pattern }) => pattern[key]);
  }

  #makePatterns() {
    return make("dl", { class: "patterns" }, this.patterns.map(({ pattern, heads }) => {
      const found = heads.filter((head) => head.found);
      const button = ({ layer, head, weight }) => make("button", {
        type: "button", class: "link", onclick: () => this.select(layer, head, true),
      }, `layer ${layer + 1}, head ${head + 1} (${percent(weight)})`);
      let parts = ["needs a word that occurs twice"];
      if (found.length) parts = found.slice(0, 6).map(button);
      else if (heads.length) parts = [make("span", {}, "no head; the nearest is "), button(heads[0])];
      const more = found.length > 6 ? make("span", {}, `and ${found.length - 6} more`) : null;
      return make("div", {}, make("dt", {}, pattern.name), make("dd", {}, parts, more));
    }));
  }

  #makeGrid() {
    this.buttons = this.attentions.map((matrices, layer) => matrices.map((matrix, head) => {
      const names = this.names(layer, head, "name");
      const label = [`Layer ${layer + 1}, head ${head + 1}`, ...names].join(": ");
      return make("button", {
        type: "button", "aria-label": label, title: label, "aria-pressed": "false",
        onclick: () => this.select(layer, head),
      }, picture(matrix), make("span", { class: "pattern" }, this.names(layer, head, "short")[0] ?? ""));
    }));
    const columns = this.attentions[0].length;
    const table = make("table", { class: "heads", role: "grid", "aria-label": "Layers and heads" },
      make("thead", {}, make("tr", {}, make("td", {}),
        this.attentions[0].map((_, head) => make("th", { scope: "col" }, `${head + 1}`)))),
      make("tbody", {}, this.buttons.map((row, layer) => make("tr", {},
        make("th", { scope: "row" }, `${layer + 1}`), row.map((button) => make("td", {}, button))))));
    roving(table, this.buttons.flat(), { columns });
    return table;
  }

  select(layer, head, scroll = false) {
    this.buttons.flat().forEach((button, index) => {
      const chosen = index === layer * this.attentions[0].length + head;
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    });
    this.panel.state = { layer: String(layer + 1), head: String(head + 1) };
    this.panel.onchange(this.panel);
    const names = this.names(layer, head, "name");
    const heading = make("h3", { tabindex: "-1" }, `Layer ${layer + 1}, head ${head + 1}`,
      names.length ? make("span", { class: "pattern" }, names.join(", ")) : null);
    this.detail.replaceChildren(heading,
      make("p", { class: "hint" }, "From each token on the left to the tokens that it looks at. Choose one to "
        + "see its attention weights."),
      flow(this.tokens, this.attentions[layer][head]));
    if (scroll) heading.focus();
  }
}

// The matrix of a head: a row for each token, darker where it looks.
function picture(matrix) {
  const size = matrix.length;
  const canvas = make("canvas", { width: size, height: size, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(size, size);
  matrix.forEach((row, i) => row.forEach((weight, j) => {
    // #3f86b8 is a blue of both colour schemes; the root makes small weights visible.
    pixels.data.set([0x3f, 0x86, 0xb8, 255 * Math.sqrt(weight)], 4 * (i * size + j));
  }));
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// Tokens on the left and right, and a line for each weight. A token on the left is a button.
function flow(tokens, matrix) {
  const shares = tokens.map(() => make("span", { class: "share" }));
  const right = tokens.map((token, j) => make("li", {}, make("code", {}, token), shares[j]));
  const lines = makeSvg("svg", {
    viewBox: `0 0 100 ${tokens.length}`, preserveAspectRatio: "none", "aria-hidden": "true",
  });
  const buttons = tokens.map((token, i) => make("button", {
    type: "button", "aria-pressed": "false", "aria-label": `${token} looks at ${strongest(tokens, matrix[i])}`,
    onclick: () => show(buttons[i].getAttribute("aria-pressed") === "true" ? null : i),
  }, make("code", {}, token)));
  const show = (chosen) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
    shares.forEach((share, j) => {
      const weight = chosen === null ? 0 : matrix[chosen][j];
      share.textContent = weight >= FAINT ? percent(weight) : "";
      right[j].style.setProperty("--shade", weight.toFixed(3));
    });
    const rows = chosen === null ? tokens.map((_, i) => i) : [chosen];
    lines.replaceChildren(...rows.flatMap((i) => matrix[i].flatMap((weight, j) => (weight < FAINT ? [] : [
      makeSvg("line", { x1: 0, y1: i + 0.5, x2: 100, y2: j + 0.5, "stroke-opacity": weight.toFixed(3) }),
    ]))));
  };
  show(null);
  const left = make("ol", { class: "from", "aria-label": "Tokens" }, buttons.map((button) => make("li", {}, button)));
  roving(left, buttons);
  return make("div", { class: "flow" }, left, lines,
    make("ol", { class: "to", "aria-label": "Tokens that are looked at" }, right));
}

const strongest = (tokens, weights) => weights
  .map((weight, j) => ({ weight, j }))
  .sort((a, b) => b.weight - a.weight)
  .slice(0, SHOWN)
  .map(({ weight, j }) => `${tokens[j]} ${percent(weight)}`)
  .join(", ");
