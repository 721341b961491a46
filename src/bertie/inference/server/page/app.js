// Start: find out what the served models can do, and show a tab for each of it.

import { ServerError, get, keepKey } from "./client.js";
import { count, make } from "./elements.js";
import { Panel } from "./panel.js";
import { TABS } from "./tabs.js";

const find = (id) => document.getElementById(id);
const panels = new Map(); // by name of the tab, in the order of the tabs
const CONTROL = /[\x00-\x08\x0a-\x1f\x7f]/; // in no header (RFC 9110, Section 5.5), so in no key
let retry = null; // what to do again when the key has been entered

async function start() {
  let info;
  try {
    info = await get("info");
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 401) askForKey(error.message, start);
    else notify(error.message);
    return;
  }
  describe(info);
  for (const tab of TABS) {
    const models = info.models.filter((model) => tab.fits(new Set(model.methods)));
    const later = (model) => Number(!tab.best?.(new Set(model.methods)));
    models.sort((a, b) => later(a) - later(b));
    if (models.length) addPanel(tab, models, info.models.length > 1);
  }
  find("tabs").hidden = false;
  window.addEventListener("popstate", route);
  route();
}

function describe({ models, version }) {
  const names = models.map(({ name }) => name).join(", ");
  find("served").textContent = models.length > 4 ? `${count(models.length, "model")}: ${names}` : names;
  document.title = `${models.length > 4 ? count(models.length, "model") : names} · bertie`;
  find("version").textContent = version ? `· bertie ${version}` : "";
}

function addPanel(tab, models, several) {
  const panel = new Panel(tab, models, {
    several,
    onchange: (changed) => { // the address names the tab that is shown
      if (!changed.element.hidden) history.replaceState(null, "", address(changed));
    },
    onunauthorized: (message) => askForKey(message, () => panel.run()),
  });
  const button = make("button", {
    id: `tab-${tab.name}`, type: "button", role: "tab", "aria-controls": `panel-${tab.name}`,
    "aria-selected": "false", tabindex: "-1", onclick: () => choose(tab.name),
  }, tab.title);
  find("tabs").append(button);
  find("panels").append(panel.element);
  panels.set(tab.name, { button, panel });
}

const address = (panel) => `#${new URLSearchParams({ tab: panel.tab.name, ...panel.address })}`;

// A tab chosen by hand is a step that the browser's back button undoes.
function choose(name) {
  if (panels.get(name).button.getAttribute("aria-selected") === "true") return;
  history.pushState(null, "", address(panels.get(name).panel));
  show(name);
}

function show(name) {
  for (const [each, { button, panel }] of panels) {
    button.setAttribute("aria-selected", String(each === name));
    button.tabIndex = each === name ? 0 : -1;
    panel.element.hidden = each !== name;
  }
}

// Show what the address says. An address with texts is a link to their results: compute them.
function route() {
  const { tab, model, ...values } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const name = panels.has(tab) ? tab : panels.keys().next().value;
  const { panel } = panels.get(name);
  show(name);
  notify(tab && name !== tab ? `No served model supports the tab of this link: ${tab}.` : "");
  if (name !== tab) return;
  if (panel.models.some((each) => each.name === model)) panel.choose(model);
  else if (model) notify(`This link names the model ${model}, which this server does not have.`);
  const fields = new Set(panel.fields.map((field) => field.name));
  const sent = Object.keys(values).some((key) => fields.has(key));
  const shown = address(panel) === location.hash && panel.results.hasChildNodes();
  panel.values = values;
  panel.state = Object.fromEntries(Object.entries(values).filter(([key]) => !fields.has(key)));
  if (sent && !shown) panel.run();
}

// In the tabs pattern the arrow keys move between tabs, and the Tab key leaves them.
find("tabs").addEventListener("keydown", (event) => {
  const buttons = [...panels.values()].map(({ button }) => button);
  const at = buttons.indexOf(document.activeElement);
  const last = buttons.length - 1;
  const targets = {
    ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last,
  };
  if (at < 0 || !(event.key in targets) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  buttons[targets[event.key]].focus();
  choose([...panels.keys()][targets[event.key]]);
});

find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = find("key-field").value.trim();
  find("key-field").value = "";
  if (CONTROL.test(key)) {
    askForKey("This key has a control character, which no key has. Copy the key again.", retry);
    return;
  }
  keepKey(key);
  find("key").hidden = true;
  notify("");
  retry();
});

function askForKey(message, again) {
  retry = again;
  notify(message);
  find("key").hidden = false;
  find("key-field").focus();
}

function notify(message) {
  find("notice").textContent = message;
  find("notice").hidden = !message;
}

start();
