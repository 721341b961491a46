// The tabs, in order. Each has: `name` in the address, `title`, `about`, the text of its `button`,
// `fits` (a set of a model's methods → whether the model can do it), `best` (whether it comes first among
// the tabs that fit), `fields`, whose `needed` (a model → true, false, or null) is for fields that only some
// models need, and `run`, which sends the request and returns a summary and the elements that
// show the answer.

import { attention } from "./attention.js";
import { bars, count, fixed, frame, make, marked, percent, table } from "./elements.js";
import { fillMask } from "./fill_mask.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const nothing = (text) => [make("p", { class: "hint" }, text)];
const pairRow = ({ text, pair }) => (pair.trim() ? { text, pair } : { text });

const nextSentence = {
  name: "next-sentence",
  title: "Next sentence",
  about: "Does the second text follow the first one? The model was pre-trained on this question.",
  button: "Compare",
  fits: (methods) => methods.has("next_sentence"),
  fields: [
    { name: "text", label: "First text", rows: 2, example: "The man went to the store." },
    { name: "pair", label: "Second text", rows: 2, example: "He bought a gallon of milk." },
  ],
  async run({ values, post }) {
    const { predictions: [share] } = await post("next-sentence", { inputs: [values] });
    if (share === null) return { summary: "", nodes: nothing("A text is blank.") };
    const rows = [{ name: "follows", share }, { name: "comes from elsewhere", share: 1 - share }];
    rows.sort((a, b) => b.share - a.share);
    rows[0].strong = true;
    return { summary: "", nodes: [bars(rows)] };
  },
};

const classification = {
  name: "classification",
  title: "Classification",
  about: "The labels that the model was fine-tuned to tell apart, and their probabilities.",
  button: "Classify",
  fits: (methods) => methods.has("classify") || methods.has("regress"),
  fields: [
    { name: "text", label: "Text", rows: 3, example: "A warm, funny and beautifully acted film." },
    { name: "pair", label: "Second text", rows: 2, needed: (model) => model.pairs,
      example: "The film touches the heart.", hint: "For models that were fine-tuned on pairs of texts." },
  ],
  async run({ model, values, post }) {
    const row = model.pairs === false ? { text: values.text } : pairRow(values);
    const { predictions: [prediction] } = await post("predict", { inputs: [row], top_k: 100 });
    if (typeof prediction === "number") {
      return { summary: "", nodes: [make("p", { class: "figure" }, fixed(prediction))] };
    }
    if (!prediction?.length) return { summary: "", nodes: nothing("The text is blank.") };
    const rows = prediction.map(({ label, score }, rank) => ({ name: label, share: score, strong: rank === 0 }));
    return { summary: count(rows.length, "label"), nodes: [bars(rows)] };
  },
};

const entities = {
  name: "entities",
  title: "Entities",
  about: "The names in a text, and their kinds.",
  button: "Find",
  fits: (methods) => methods.has("tag"),
  fields: [{ name: "text", label: "Text", rows: 4,
    example: "Ada Lovelace met Charles Babbage in London, and Google named a computer in Paris after her." }],
  async run({ values, post }) {
    const { predictions: [found] } = await post("predict", { inputs: [{ text: values.text }] });
    if (!found.length) return { summary: "no entities", nodes: nothing("The model finds no entities here.") };
    if (found[0].tag !== undefined) return taggedWords(found);
    const kinds = [...new Set(found.map(({ label }) => label))].sort();
    const marks = found.map(({ start, end, label }) =>
      ({ start, end, label, className: `kind-${kinds.indexOf(label) % 6}` }));
    const rows = found.map(({ text, label, score }) => [text, label, percent(score)]);
    return {
      summary: found.length === 1 ? "1 entity" : `${found.length} entities`,
      nodes: [
        make("p", { class: "passage" }, marked(values.text, marks)),
        table([{ name: "entity" }, { name: "kind" }, { name: "probability", number: true }], rows, "Entities"),
      ],
    };
  },
};

// A tagger whose tags are no entities, such as parts of speech.
function taggedWords(found) {
  const rows = found.map(({ word, tag, score }) => [word, tag, percent(score)]);
  const headings = [{ name: "word" }, { name: "tag" }, { name: "probability", number: true }];
  return { summary: count(rows.length, "word"), nodes: [table(headings, rows, "Tagged words")] };
}

const answers = {
  name: "questions",
  title: "Questions",
  about: "A question whose answer is a part of a passage.",
  button: "Answer",
  fits: (methods) => methods.has("answer"),
  fields: [
    { name: "question", label: "Question", rows: 1, example: "Where did the second match take place?" },
    { name: "context", label: "Passage", rows: 6, example: "The first match was played in Vienna in front "
      + "of a small crowd. The second match, a month later, took place in Lisbon; the visitors won it by "
      + "three goals to one." },
  ],
  async run({ values, post }) {
    const { question, context } = values;
    const { predictions: [found] } = await post("predict", { inputs: [{ question, context }], top_k: 5 });
    if (!found.length) return { summary: "", nodes: nothing("The question or the passage is blank.") };
    const passage = make("p", { class: "passage" });
    const show = ({ start, end }) => passage.replaceChildren(...marked(context, end > start ? [{ start, end }] : []));
    show(found[0]);
    const rows = found.map((answer, rank) => ({
      name: answer.text || "no answer in the passage", share: answer.score, strong: rank === 0,
      action: "Show it in the passage", onclick: () => show(answer),
    }));
    return { summary: count(found.length, "answer"), nodes: [passage, bars(rows, { class: "bars long" })] };
  },
};

const choices = {
  name: "endings",
  title: "Endings",
  about: "How does it go on? The model chooses among the endings of a context.",
  button: "Choose",
  fits: (methods) => methods.has("choose"),
  fields: [
    { name: "context", label: "Context", rows: 2, example: "She opened her umbrella because" },
    { name: "endings", label: "Endings, one a line", rows: 4,
      example: "it had started to rain.\nthe soup was cold.\nher brother plays the piano." },
  ],
  async run({ values, post }) {
    const row = { context: values.context, endings: lines(values.endings) };
    const { predictions: [found] } = await post("predict", { inputs: [row], top_k: 100 });
    const rows = found.map(({ ending, score }, rank) => ({ name: ending, share: score, strong: rank === 0 }));
    return { summary: count(rows.length, "ending"), nodes: [bars(rows, { class: "bars long" })] };
  },
};

// A model without a head, which was made for embeddings.
const HEADS = ["fill_mask", "next_sentence", "classify", "regress", "tag", "answer", "choose"];
const isEncoder = (methods) => !HEADS.some((method) => methods.has(method));

const TEXTS = "How do I read a file line by line?\nA cat is sleeping on the sofa.\nOpen the file and loop "
  + "over its lines.\nThe kitten naps on the couch.\nInterest rates rose again this month.";

const ranking = {
  name: "ranking",
  title: "Ranking",
  about: "The lines, ordered by how well they fit the query.",
  button: "Rank",
  fits: (methods) => methods.has("rerank") || methods.has("embed"),
  best: isEncoder,
  fields: [
    { name: "query", label: "Query", rows: 1, example: "reading text files in a program" },
    { name: "texts", label: "Texts, one a line", rows: 6, example: TEXTS },
  ],
  async run({ model, values, post }) {
    const texts = lines(values.texts);
    const reranks = model.methods.includes("rerank");
    const scores = reranks
      ? await post("rerank", { query: values.query, texts })
      : cosinesToFirst(await post("embed", { inputs: [values.query, ...texts], normalize: true }));
    const rows = scores.sort((a, b) => b.score - a.score).map(({ index, score }, rank) =>
      ({ name: texts[index], share: score, value: fixed(score), strong: rank === 0 }));
    const by = reranks ? "scores of the model" : "cosines of the embeddings with the query's";
    return { summary: `${count(rows.length, "text")}, by the ${by}`, nodes: [bars(rows, { class: "bars long" })] };
  },
};

const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
const cosinesToFirst = ([query, ...rest]) => rest.map((vector, index) => ({ index, score: dot(query, vector) }));

const similarity = {
  name: "similarity",
  title: "Similarity",
  about: "The cosine of the embeddings of each two lines.",
  button: "Compare",
  fits: (methods) => methods.has("embed"),
  best: isEncoder,
  fields: [{ name: "texts", label: "Texts, one a line", rows: 6, example: TEXTS }],
  async run({ values, post }) {
    const texts = lines(values.texts);
    const vectors = await post("embed", { inputs: texts, normalize: true });
    const cosines = vectors.map((row) => vectors.map((column) => dot(row, column)));
    return { summary: count(texts.length, "text"), nodes: [heatMap(texts, cosines)] };
  },
};

// A table with a shade in each cell. The shades span the cosines that are not on the diagonal.
function heatMap(texts, cosines) {
  const others = cosines.flatMap((row, i) => row.filter((_, j) => i !== j));
  const [least, most] = [Math.min(...others), Math.max(...others)];
  const shade = (value) => (most > least ? Math.min(1, Math.max(0, (value - least) / (most - least))) : 0);
  const cell = (value, same) =>
    make("td", { class: same ? "heat same" : "heat", style: { "--shade": shade(value).toFixed(3) } }, fixed(value, 2));
  const rows = cosines.map((row, i) => make("tr", {},
    make("th", { scope: "row" }, make("span", { class: "row-number" }, String(i + 1)), texts[i]),
    row.map((value, j) => cell(value, i === j))));
  const head = make("tr", {}, make("td", {}), texts.map((text, i) =>
    make("th", { scope: "col" }, String(i + 1), make("span", { class: "unseen" }, ` ${text}`))));
  return frame("Similarities", make("table", { class: "heat-map" },
    make("caption", { class: "unseen" }, "Cosine of each two texts"),
    make("thead", {}, head), make("tbody", {}, rows)));
}

const tokens = {
  name: "tokens",
  title: "Tokens",
  about: "How the model's tokenizer splits a text, with the id and the position of each token.",
  button: "Split",
  fits: () => true,
  fields: [{ name: "text", label: "Text", rows: 3,
    example: "Tokenizers split unfamiliar words: Donaudampfschiff, naïve, 北京, 3.14." }],
  async run({ values, post }) {
    const [found] = await post("tokenize", { inputs: [values.text], add_special_tokens: true });
    const points = [...values.text];
    const ordinary = found.filter(({ start, stop }) => stop > start);
    const marks = ordinary.map(({ start, stop }, index) =>
      ({ start, end: stop, className: index % 2 ? "token odd" : "token" }));
    const rows = found.map(({ id, token, start, stop }, index) => [
      String(index), make("code", {}, token), String(id),
      stop > start ? `${start}–${stop}` : "", stop > start ? points.slice(start, stop).join("") : "",
    ]);
    const headings = [{ name: "position", number: true }, { name: "token" }, { name: "id", number: true },
      { name: "characters", number: true }, { name: "text" }];
    return {
      summary: count(found.length, "token"),
      nodes: [make("p", { class: "passage" }, marked(values.text, marks)), table(headings, rows, "Tokens")],
    };
  },
};

export const TABS = [
  fillMask, nextSentence, classification, entities, answers, choices, ranking, similarity, tokens, attention,
];
