// Small helpers for elements and numbers.

/** An element: el("button", { class: "step", onclick: … }, "text", child, …). */
function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** The data in an element: JSON, or deflated JSON in base64. */
async function embedded(id) {
  const { type, textContent } = document.getElementById(id);
  if (type === "application/json") return JSON.parse(textContent);
  const packed = Uint8Array.from(atob(textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const fixed = (number, digits = 3) => (Number.isFinite(number) ? number.toFixed(digits) : "–");
/** A fraction as text, like Python's format_share: a number other than 0 and 1 is never rounded to 0 or 1. */
function shareText(number, digits = 3) {
  const half = 0.5 * 10 ** -digits;
  if (number >= 1 - half && number < 1) return `>.${"9".repeat(digits)}`;
  return number > 0 && number < half ? `<.${"1".padStart(digits, "0")}` : fixed(number, digits);
}
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const shortened = (text, most = 28) => (text.length <= most ? text : `${text.slice(0, most / 2)}…${text.slice(1 - most / 2)}`);

/** A stopping rule as text, without its default values: Converged(patience=4). */
function ruleText({ kind, ...given }) {
  const changed = Object.entries(given).filter(([name, value]) => value !== USUAL[kind]?.[name]);
  const settings = changed.map(([name, value]) => `${name}=${value}`);
  return settings.length ? `${kind}(${settings.join(", ")})` : kind;
}
