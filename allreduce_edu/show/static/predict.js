// Draws one question of `Predict`, and hides its answer until there is a guess or the reader skips.
// Python decides everything: which guess is right, and what is said to it, stands in `verdicts`.

/** Make an element; `text` may mark code with backticks. Never parses HTML. */
function make(tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  text.split("`").forEach((part, i) => {
    if (i % 2) node.append(make("code", {}, part));
    else if (part) node.append(part);
  });
  return node;
}

// JupyterLab takes keys from anything focused in an output that does not carry this attribute.
const KEYS = { "data-lm-suppress-shortcuts": "true" };

const MARK = { right: "✓", other: "≠" };
const kindOf = (right) => (right ? "right" : "other");

function button(kind, text, act) {
  const node = make("button", { type: "button", class: kind, ...KEYS }, text);
  node.addEventListener("click", act);
  return node;
}

/** Radio buttons, one per choice: arrows move, a letter picks, and no guess is "". */
function choices(verdicts) {
  const node = make("div", { class: "choices" });
  const name = `predict-${Math.random().toString(36).slice(2)}`;
  const inputs = verdicts.map(({ about, right }, i) => {
    const label = make("label");
    const input = make("input", { type: "radio", class: kindOf(right), name, value: about, ...KEYS });
    const pill = make("span", { class: "pill" });
    pill.append(make("span", { class: "letter" }, String.fromCharCode(65 + i)), " ");
    pill.append(make("span", {}, about));
    label.append(input, pill);
    node.append(label);
    return input;
  });
  node.addEventListener("keydown", (event) => {
    const input = event.key.length === 1 && inputs[event.key.toUpperCase().charCodeAt(0) - 65];
    if (!input || event.ctrlKey || event.metaKey || event.altKey) return;
    input.checked = true;
    input.focus();
  });
  return {
    node,
    first: inputs[0],
    ask: "Choose one first, or skip.",
    get: () => inputs.find((input) => input.checked)?.value ?? "",
    set: (guess) => inputs.forEach((input) => (input.checked = input.value === guess)),
  };
}

/** One number; what is no number counts as no guess. */
function number(unit) {
  const node = make("label", { class: "number" });
  const input = make("input", { type: "number", step: "any", ...KEYS });
  node.append(make("span", { class: "label" }, "Your guess"), " ", input, " ", make("span", {}, unit));
  return {
    node,
    first: input,
    ask: "Type a number first, or skip.",
    get: () => input.value,
    set: (guess) => (input.value = guess),
  };
}

/** Find what is said to a guess: the first verdict that it fits, see predict.py. */
function judge(kind, verdicts, guess) {
  const fits = kind === "choice"
    ? (verdict) => verdict.about === guess
    : ({ low, high }) => low === undefined || (low <= Number(guess) && Number(guess) <= high);
  return verdicts.find(fits);
}

/** A labelled value, the guess or the answer; a screen reader hears `spoken` for its mark. */
function value(label, text, right, spoken) {
  const node = make("div", { class: `value ${kindOf(right)}` });
  const big = make("span", { class: "big" });
  const heard = spoken ? { role: "img", "aria-label": spoken } : { "aria-hidden": "true" };
  big.append(make("span", { class: "mark", ...heard }, MARK[kindOf(right)]), " ", make("span", {}, text));
  node.append(make("span", { class: "label" }, label), " ", big);
  return node;
}

function render({ model, el }) {
  const kind = model.get("kind"), verdicts = model.get("verdicts"), unit = model.get("unit");
  const withUnit = (text) => (unit ? `${text} ${unit}` : text);
  const input = kind === "choice" ? choices(verdicts) : number(unit);

  const root = make("section", { class: "allreduce-predict" });
  const fieldset = make("fieldset");
  const hint = make("span", { class: "hint", role: "status" });
  const actions = make("div", { class: "actions" });
  const outcome = make("div", { class: "outcome", role: "status" });
  const again = button("quiet again", "Answer again", () => move("open"));

  function lock() {
    const guess = input.get();
    hint.textContent = guess ? "" : input.ask;
    if (!guess) return input.first.focus();
    model.set("guess", guess);
    if (!model.get("first")) model.set("first", guess);
    move("answered");
  }

  /** Change the state for the reader who pressed a key here, and keep the focus inside. */
  function move(status) {
    model.set("status", status);
    model.save_changes();
    (status === "open" ? input.first : again).focus();
  }

  function draw() {
    const status = model.get("status"), open = status === "open";
    const guess = status === "answered" ? model.get("guess") : "";
    fieldset.disabled = !open;
    actions.hidden = !open;
    again.hidden = open;
    again.textContent = status === "skipped" ? "Answer after all" : "Answer again";
    hint.textContent = "";
    input.set(guess);
    outcome.replaceChildren(...(open ? [] : reveal(guess, model.get("first"))));
  }

  function reveal(guess, first) {
    const { right, reply } = guess ? judge(kind, verdicts, guess) : verdicts.find((v) => v.right);
    const pair = make("div", { class: "pair" });
    const spoken = right ? "agrees with the answer" : "differs from the answer";
    if (guess) pair.append(value("Your guess", withUnit(guess), right, spoken), " ");
    pair.append(value("Answer", withUnit(model.get("answer")), true));
    const remember = first && first !== guess ? `Your first guess was ${withUnit(first)}.` : "";
    return [pair, make("p", {}, reply), ...(remember ? [make("p", { class: "first" }, remember)] : [])];
  }

  fieldset.append(make("legend", {}, model.get("question")), input.node);
  actions.append(button("main", "Lock in", lock), button("quiet", "Skip: show me", () => move("skipped")), hint);
  root.append(fieldset, actions, outcome, again);
  input.node.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter") return;
    event.preventDefault();  // or the same key would press the button that has the focus next
    lock();
  });
  el.append(root);
  draw();

  const watched = "change:status change:guess change:first";
  model.on(watched, draw);
  return () => model.off(watched, draw);
}

export default { render };
