// What the checklist and the museum make their pages of: written in front of either script.

// JupyterLab takes keys from anything focused in an output that does not carry this attribute.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

function make(tag, keys = {}, ...inner) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(keys)) node.setAttribute(key, value);
  node.append(...inner);
  return node;
}

/** Make an element; `text` may mark code with backticks. Never parses HTML. */
function marked(tag, keys, text) {
  const node = make(tag, keys);
  text.split("`").forEach((part, i) => part && node.append(i % 2 ? make("code", {}, part) : part));
  return node;
}

function button(kind, text, act) {
  const node = make("button", { type: "button", class: kind, ...KEYS }, text);
  node.addEventListener("click", act);
  return node;
}
