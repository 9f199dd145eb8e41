// Named controls above pictures. Python draws and decides (show/explorers.py): positions go there
// as numbers, SVG text, words and a table come back. No parsing of HTML, no algorithm.

const PATIENCE = 600; // milliseconds after which it says that the kernel has not answered

// JupyterLab takes keys from anything focused in an output that does not carry this attribute.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

function make(tag, keys = {}, ...inner) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(keys)) node.setAttribute(key, value);
  node.append(...inner);
  return node;
}

function button(kind, text, act) {
  const node = make("button", { type: "button", class: kind, ...KEYS }, text);
  node.addEventListener("click", act);
  return node;
}

/** Return SVG text as an element: parsed as XML, in which nothing runs. */
function picture(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return document.importNode(parsed, true);
}

function table({ head, rows }) {
  const heads = head.map((text) => make("th", { scope: "col" }, text));
  const body = rows.map(([first, ...rest]) =>
    make("tr", {}, make("th", { scope: "row" }, first), ...rest.map((text) => make("td", {}, text))));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
}

/** Make one control: a label, an input, and how to set it; `moved` gets the new position. */
function control({ label, kind, options }, moved) {
  const name = make("span", { class: "label" }, label), keys = { "aria-label": label, ...KEYS };
  if (kind === "choice") {
    const input = make("select", keys, ...options.map((text, i) => make("option", { value: i }, text)));
    input.addEventListener("change", () => moved(Number(input.value)));
    return { node: make("label", {}, name, input), set: (i) => (input.value = i) };
  }
  if (kind === "switch") {
    const input = make("input", { type: "checkbox", ...keys });
    input.addEventListener("change", () => moved(Number(input.checked)));
    return { node: make("label", { class: "switch" }, input, name), set: (i) => (input.checked = i === 1) };
  }
  const input = make("input", { type: "range", min: 0, max: options.length - 1, step: 1, ...keys });
  const value = make("span", { class: "value" }); // no <output>: the label would be its
  const say = (i) => {
    value.textContent = options[i];
    input.setAttribute("aria-valuetext", options[i]);
  };
  input.addEventListener("input", () => {
    say(Number(input.value));
    moved(Number(input.value));
  });
  const node = make("label", {}, make("span", { class: "label" }, label, ": ", value), input);
  return { node, set: (i) => ((input.value = i), say(i)) };
}

function render({ model, el }) {
  let timer;
  let wanted = null; // the newest wish, as long as an earlier one is being answered
  const controls = model.get("controls").map((each, i) => control(each, (position) => move(i, position)));
  const row = make("div", { class: "controls" }, ...controls.map(({ node }) => node));
  const rest = make("p", { class: "rest" });
  const all = button("quiet", "Show all controls", open);
  const bar = make("progress", { max: 1, "aria-label": "Progress" });
  const stop = button("quiet", "Stop", halt);
  const work = make("div", { class: "work" }, make("span", {}, "Working"), bar, stop);
  const waiting = make("p", { class: "waiting", role: "status" });
  const problem = make("p", { class: "problem", role: "alert" });
  const pictures = make("div", { class: "pictures" });
  const words = make("p", { class: "words", role: "status" });
  const rows = make("div", { class: "rows" });
  const root = make("section", { class: "ar-explorer", "aria-label": model.get("title") });
  const lead = make("div", { class: "lead" }, row, make("div", { class: "closed" }, all, rest));
  root.append(make("strong", { class: "title" }, model.get("title")), lead, waiting, work, problem, pictures, words, rows);

  function move(i, position) {
    const at = [...(wanted ?? model.get("at"))];
    at[i] = position;
    wanted = at;
    ask();
  }

  /** Ask the kernel for the newest wish, unless it is still at an earlier one. */
  function ask() {
    if (wanted === null || model.get("heard") < model.get("asked")) return;
    model.set("at", wanted);
    model.set("asked", model.get("asked") + 1);
    wanted = null;
    timer = setTimeout(() => (waiting.textContent = "Asking the kernel …"), PATIENCE);
    model.save_changes();
  }

  function heard() {
    clearTimeout(timer);
    waiting.textContent = "";
    ask();
  }

  function open() {
    model.set("opened", true);
    model.save_changes();
    row.children[1].querySelector("select, input").focus();
  }

  function halt() {
    model.set("stops", model.get("stops") + 1);
    model.save_changes();
  }

  function place() {
    const at = wanted ?? model.get("at"), opened = model.get("opened"), told = model.get("controls");
    controls.forEach(({ node, set }, i) => {
      set(at[i]);
      node.hidden = !opened && i > 0;
    });
    all.parentElement.hidden = opened;
    rest.textContent = told.slice(1).map(({ label, options }, i) => `${label}: ${options[at[i + 1]]}`).join(" · ");
  }

  function draw() {
    const view = model.get("view");
    pictures.replaceChildren(...view.charts.map(picture));
    words.textContent = view.words;
    rows.replaceChildren(...(view.table ? [table(view.table)] : []));
  }

  function tell() {
    const done = model.get("progress");
    work.hidden = done >= 1;
    bar.value = done;
    pictures.setAttribute("aria-busy", done < 1);
    problem.textContent = model.get("problem");
  }

  const acts = {
    "change:view": draw, "change:at": place, "change:opened": place, "change:heard": heard,
    "change:progress": tell, "change:problem": tell,
  };
  for (const [event, act] of Object.entries(acts)) model.on(event, act);
  el.append(root);
  place();
  draw();
  tell();
  return () => {
    clearTimeout(timer);
    for (const [event, act] of Object.entries(acts)) model.off(event, act);
  };
}

export default { render };
