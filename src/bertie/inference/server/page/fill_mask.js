// Masked words: candidates as bars; a click fills one in, a click on a word masks it.

import { bars, count, make, roving } from "./elements.js";

const MASK = "[MASK]";
// A word has letters, digits and marks such as vowel signs. A Chinese character is a token, so also a word.
const LETTERS = "(?:(?!\\p{sc=Han})[\\p{L}\\p{N}\\p{M}])+";
const MASK_OR_WORD = new RegExp(`\\[MASK\\]|\\p{sc=Han}|${LETTERS}(?:['’]${LETTERS})*`, "gu");

export const fillMask = {
  name: "fill-mask",
  title: "Masked words",
  about: `Put ${MASK} in place of a word: the model predicts the word from both sides.`,
  button: "Predict",
  fits: (methods) => methods.has("fill_mask"),
  fields: [{ name: "text", label: "Text", rows: 2, example: `Return the name of the ${MASK}.` }],
  async run({ values, panel, post }) {
    const { text } = values;
    if (!text.includes(MASK) && panel.results.hasChildNodes()) { // the last mask was filled in
      return { summary: "", nodes: sentence(text, panel) };
    }
    const { predictions } = await post("predict", { inputs: [{ text }], top_k: 8 });
    const masks = predictions[0];
    return {
      summary: count(masks.length, "masked word"),
      nodes: [...sentence(text, panel), ...masks.map((candidates, index) =>
        candidateList(candidates, index, masks.length, panel))],
    };
  },
};

// The text, with masks marked and each word a button that masks it.
function sentence(text, panel) {
  const buttons = [], parts = [];
  let done = 0;
  for (const { 0: piece, index } of text.matchAll(MASK_OR_WORD)) {
    const end = index + piece.length;
    parts.push(text.slice(done, index));
    done = end;
    if (piece === MASK) {
      parts.push(make("mark", {}, MASK));
    } else {
      const masked = text.slice(0, index) + MASK + text.slice(end);
      buttons.push(make("button", {
        type: "button", class: "word", "aria-label": `Mask ${piece}`, onclick: () => fill(masked, panel),
      }, piece));
      parts.push(buttons.at(-1));
    }
  }
  // `dir`, because the order of buttons does not depend on their letters.
  const group = make("p", { class: "sentence", dir: "auto", role: "group", "aria-label": "The words of the text" },
    ...parts, text.slice(done));
  if (buttons.length) roving(group, buttons);
  return [group, make("p", { class: "hint" }, "Click a word to mask it, or a prediction to fill it in.")];
}

function candidateList(candidates, index, total, panel) {
  const heading = make("h3", {}, total > 1 ? `Mask ${index + 1} of ${total}` : "Predictions");
  return make("div", {}, heading, bars(candidates.map(({ token_str: token, score, sequence }, rank) => ({
    name: make("code", {}, token),
    share: score,
    strong: rank === 0,
    action: `Fill in ${token}`,
    onclick: () => fill(sequence, panel),
  }))));
}

// Put a text in the field, compute, and move the focus to the new results.
async function fill(text, panel) {
  panel.values = { text };
  await panel.run();
  const { results, fields: [{ area }] } = panel;
  (results.querySelector(".bars button") ?? results.querySelector("button") ?? area).focus();
}
