"use strict";
// Shows openapi.json, and sends the example bodies.

const MAX_SHOWN = 20000; // characters of a response

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function typeName(schema, api) {
  if (schema.$ref) return typeName(api.components.schemas[schema.$ref.split("/").pop()], api);
  if (schema.anyOf) return [...new Set(schema.anyOf.map((member) => typeName(member, api)))].join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${schema.items ? typeName(schema.items, api) : "anything"}`;
  if (schema.properties) return `{${Object.keys(schema.properties).join(", ")}}`;
  return schema.type || "anything";
}

function variants(schema, api) {
  if (schema.$ref) return variants(api.components.schemas[schema.$ref.split("/").pop()], api);
  return schema.anyOf ? schema.anyOf.flatMap((member) => variants(member, api)) : [schema];
}

function fields(schema, api) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const title of ["field", "type", "default"]) head.append(element("th", title, { scope: "col" }));
  const body = table.createTBody();
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = body.insertRow();
    const code = element("code");
    for (const part of name.split(/(?<=_)/)) code.append(part, element("wbr")); // on phones, a line may end here
    row.insertCell().append(code);
    row.insertCell().textContent = typeName(field, api);
    const required = (schema.required || []).includes(name);
    row.insertCell().textContent = required ? "required" : JSON.stringify(field.default ?? null);
  }
  return table;
}

async function send(verb, path, body, output) {
  output.textContent = "Computing…";
  const headers = { "Content-Type": "application/json" };
  const key = document.getElementById("key").value;
  // UTF-8, a character for each byte; `fetch` refuses a header with other characters.
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  if (key) headers.Authorization = `Bearer ${bytes}`;
  try {
    const response = await fetch(path.replace(/^\//, "") || "./", { method: verb, headers, body });
    const text = await response.text();
    output.textContent = `${response.status}\n${text.slice(0, MAX_SHOWN)}${text.length > MAX_SHOWN ? "…" : ""}`;
  } catch (error) {
    output.textContent = `No response: ${error.message}`;
  }
}

function route(verb, path, operation, api) {
  const details = element("details", undefined, { id: `${verb}${path}` });
  const summary = element("summary");
  summary.append(element("span", verb.toUpperCase(), { class: "verb" }), element("code", path));
  summary.append(` ${operation.summary}`);
  details.append(summary);
  const content = operation.requestBody?.content["application/json"];
  let input;
  if (content) {
    for (const variant of variants(content.schema, api)) {
      details.append(element("h2", (variant.description || variant.title || "").split("\n")[0]));
      details.append(fields(variant, api));
    }
    input = element("textarea", undefined, { "aria-label": `Body of ${verb} ${path}`, spellcheck: "false" });
    input.value = JSON.stringify(content.example, null, 2);
    details.append(input);
  }
  if (!path.includes("{")) {
    const button = element("button", "Send", { type: "button" });
    const output = element("pre", "", { tabindex: "0", role: "status" });
    button.addEventListener("click", () => send(verb.toUpperCase(), path, input?.value, output));
    details.append(button, output);
  }
  return details;
}

async function show() {
  const main = document.getElementById("routes");
  const response = await fetch("openapi.json");
  const api = await response.json();
  main.replaceChildren();
  for (const [path, operations] of Object.entries(api.paths)) {
    if (path.startsWith("/models/{name}")) continue; // the same routes for one model
    for (const [verb, operation] of Object.entries(operations)) main.append(route(verb, path, operation, api));
  }
  const chosen = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (chosen) chosen.open = true;
}

show();
