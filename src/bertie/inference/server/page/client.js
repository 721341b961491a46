// Requests to the server that this page came from. Paths are relative to the page.

const KEY = "bertie-api-key";

// An answer that is not a success: its status, and the server's message as it was written.
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

export const get = (path) => send(path, {});

export const post = (path, body, signal) =>
  send(path, { method: "POST", body: JSON.stringify(body), signal });

async function send(path, { signal, ...options }) {
  const headers = { "Content-Type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${asBytes(key)}`;
  let response, text;
  try {
    response = await fetch(path, { ...options, headers, signal });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer. Is it still running?");
  }
  if (!response.ok) {
    throw new ServerError(response.status, errorMessage(text) || `${response.status} ${response.statusText}`);
  }
  try {
    return JSON.parse(text);
  } catch { // such as the login page of a proxy
    throw new ServerError(response.status, `The answer to ${path} is not JSON. Is this address the server's?`);
  }
}

// UTF-8, a character for each byte; `fetch` refuses a header with other characters.
const asBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

// The message of an error body: {"error": "…"}, {"error": {"message": "…"}}, or plain text of a proxy.
function errorMessage(text) {
  try {
    const { error } = JSON.parse(text);
    return error?.message ?? error;
  } catch {
    return text.trim();
  }
}
