// One tab: its form, the request, and what came back.

import { make } from "./elements.js";
import { ServerError, post } from "./client.js";

const SLOW = 1000; // milliseconds after which the page shows for how long it has been waiting

export class Panel {
  // `tab` is one of tabs.js; `models` are the models that it fits; `several`: the server has several models;
  // `onchange` is called with the panel when its address has changed, `onunauthorized` when the server
  // asks for a key.
  constructor(tab, models, { several, onchange, onunauthorized }) {
    Object.assign(this, { tab, models, onchange, onunauthorized, state: {}, running: null });
    this.fields = tab.fields.map((field) => this.#makeField(field));
    this.chooser = make("select", { id: `${tab.name}-model` },
      models.map(({ name }) => make("option", { value: name }, name)));
    this.status = make("p", { class: "status", role: "status" });
    this.results = make("div", { class: "results" });
    const chooser = make("div", { class: "field model", hidden: !several },
      make("label", { for: this.chooser.id }, "Model"), this.chooser);
    const button = make("button", { class: "run" }, tab.button);
    this.form = make("form", { onsubmit: (event) => { event.preventDefault(); this.run(); } },
      chooser, this.fields.map(({ box }) => box), make("div", { class: "line" }, button, this.status));
    this.form.addEventListener("keydown", (event) => {
      const send = event.ctrlKey || event.metaKey || (event.target.rows === 1 && !event.shiftKey);
      if (event.key !== "Enter" || !send) return;
      event.preventDefault();
      this.form.requestSubmit();
    });
    this.chooser.addEventListener("change", () => {
      this.#fitFields();
      if (this.results.hasChildNodes()) this.run(); // they are another model's
      else this.onchange(this);
    });
    this.element = make("section", {
      id: `panel-${tab.name}`, role: "tabpanel", "aria-labelledby": `tab-${tab.name}`, hidden: true,
    }, make("h2", { class: "unseen" }, tab.title), make("p", { class: "about" }, tab.about), this.form,
    this.results);
    this.#fitFields();
  }

  #makeField({ name, label, hint, rows, example, optional, needed }) {
    const id = `${this.tab.name}-${name}`;
    const area = make("textarea", {
      id, rows, required: !optional, spellcheck: "false", "aria-describedby": hint ? `${id}-hint` : null,
    });
    area.value = needed ? "" : example ?? "";
    const note = optional || needed ? make("span", { class: "optional" }, " optional") : null;
    const box = make("div", { class: "field" },
      make("label", { for: id }, label, note),
      hint ? make("p", { class: "hint", id: `${id}-hint` }, hint) : null, area);
    return { name, area, box, note, needed, example };
  }

  choose(name) {
    this.chooser.value = name;
    this.#fitFields();
  }

  // A field with `needed` is required by some models, hidden for others, and optional if that is unknown.
  #fitFields() {
    for (const { area, box, note, needed, example } of this.fields.filter((field) => field.needed)) {
      const isNeeded = needed(this.model);
      area.required = note.hidden = isNeeded === true;
      box.hidden = isNeeded === false;
      if (isNeeded && !area.value) area.value = example;
    }
  }

  get model() {
    return this.models.find(({ name }) => name === this.chooser.value);
  }

  get values() {
    return Object.fromEntries(this.fields.map(({ name, area }) => [name, area.value]));
  }

  set values(values) {
    for (const { name, area } of this.fields) area.value = values[name] ?? area.value;
  }

  // The part of the address that brings this tab back: model, texts, and what is selected.
  get address() {
    return { model: this.chooser.value, ...this.values, ...this.state };
  }

  // Send the request and show its results; a run that is under way is given up.
  async run() {
    this.running?.abort();
    const running = this.running = new AbortController();
    const { model, values } = this;
    this.onchange(this);
    this.#wait(running.signal);
    try {
      const { summary, nodes } = await this.tab.run({
        model,
        values,
        panel: this,
        post: (route, body) =>
          post(`models/${encodeURIComponent(model.name)}/${route}`, body, running.signal),
      });
      if (running.signal.aborted) return;
      this.status.replaceChildren(summary);
      this.results.replaceChildren(...nodes.filter(Boolean));
    } catch (error) {
      if (error.name === "AbortError" || running.signal.aborted) return;
      if (!(error instanceof ServerError)) throw error;
      this.status.replaceChildren();
      this.results.replaceChildren(make("p", { class: "error", role: "alert" }, error.message));
      if (error.status === 401) this.onunauthorized(error.message);
    } finally {
      if (this.running === running) {
        running.abort(); // ends the waiting
        this.running = null;
        this.results.removeAttribute("aria-busy");
      }
    }
  }

  // Say that the answer is being computed, and after a while for how long.
  #wait(signal) {
    this.results.setAttribute("aria-busy", "true");
    const elapsed = make("span", { "aria-hidden": "true" });
    this.status.replaceChildren("Computing…", elapsed);
    const started = performance.now();
    const timer = setInterval(() => {
      elapsed.textContent = ` ${Math.floor((performance.now() - started) / 1000)} s`;
    }, SLOW);
    signal.addEventListener("abort", () => clearInterval(timer));
  }
}
