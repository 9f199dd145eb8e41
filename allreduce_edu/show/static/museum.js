// Draws both halves of a visit to the museum of faults: "case" (symptoms, program, what came of it)
// and "bench" (the editor, the verdict, the answer). Python runs, judges and writes every sentence
// (show/museum.py); a wish goes there as a word with a number. No parsing of HTML.

const ASKING = "Waiting for the kernel …";

/** Return SVG text as an element: parsed as XML, in which nothing runs. */
function picture(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return document.importNode(parsed, true);
}

/** Return a program with the numbers of its lines, which are not read out or copied. */
function listing(text) {
  const rows = text.trimEnd().split("\n").map((line, i) =>
    make("span", { class: "row" }, make("span", { class: "no", "aria-hidden": "true" }, `${i + 1}`), `${line}\n`));
  return make("div", { class: "program", tabindex: "0", role: "region", "aria-label": "The program", ...KEYS }, ...rows);
}

function list(items, draw) {
  return make("ul", {}, ...items.map((each) => draw(each)));
}

/** Send a wish, and say so until the kernel takes it up. */
function wish(model, what, more = "") {
  model.set("busy", ASKING);
  model.set("wish", { n: (model.get("wish").n ?? 0) + 1, what, more });
  model.save_changes();
}

/** Call draw now and whenever one of the traits changes; return how to stop. */
function follow(model, names, draw) {
  const events = names.map((name) => `change:${name}`).join(" ");
  draw();
  model.on(events, draw);
  return () => model.off(events, draw);
}

// ------------------------------------------------------------------ the case: what is on show

const plain = (text) => text.toLowerCase().replaceAll("-", "").replaceAll("`", "");

/** The catalogue: a filter, the wings, and one radio button for each symptom. */
function catalogue(model) {
  const symptoms = model.get("symptoms"), wings = model.get("wings");
  const name = `museum-${Math.random().toString(36).slice(2)}`;
  const filter = make("input", { type: "search", placeholder: "Timed out, loss, second epoch …", ...KEYS });
  const wing = make("select", { ...KEYS }, make("option", { value: "" }, "all three wings"),
    ...wings.map(({ key, title }) => make("option", { value: key }, title)));
  const count = make("p", { class: "count", role: "status" });
  const inputs = new Map();
  const groups = wings.map(({ key, title }) => {
    const group = make("fieldset", {}, make("legend", {}, title));
    for (const each of symptoms.filter((s) => s.wing === key)) {
      const input = make("input", { type: "radio", name, value: each.name, ...KEYS });
      input.addEventListener("change", () => wish(model, "choose", each.name));
      const done = make("span", { class: "done" });
      const label = make("label", { class: "symptom" }, input, marked("span", {}, each.symptom), done);
      inputs.set(each.name, { input, label, done, each, words: plain(each.words) });
      group.append(label);
    }
    return { key, group };
  });

  function narrow() {
    const asked = plain(filter.value).split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { label, each, words } of inputs.values()) {
      const fits = (!wing.value || each.wing === wing.value) && asked.every((word) => words.includes(word));
      label.hidden = !fits;
      shown += fits;
    }
    for (const { group } of groups) group.hidden = !group.querySelector("label:not([hidden])");
    count.textContent = shown ? `${shown} of ${inputs.size} symptoms` : "No symptom has all these words: try fewer.";
  }

  filter.addEventListener("input", narrow);
  wing.addEventListener("change", narrow);
  narrow();
  const controls = make("div", { class: "controls" },
    make("label", {}, make("span", { class: "label" }, "What do you see?"), filter),
    make("label", {}, make("span", { class: "label" }, "Wing"), wing), count);
  const box = make("div", { class: "symptoms" }, ...groups.map(({ group }) => group));
  const choose = (at) => inputs.forEach(({ input }, key) => (input.checked = key === at));
  const tick = (names) => names.forEach((name) => (inputs.get(name).done.textContent = "✓ mended"));
  return { node: make("div", { class: "catalogue" }, controls, box), choose, tick };
}

function tools(told) {
  const each = told.map(({ tool, text, ask, read }) => make("details", {},
    make("summary", { ...KEYS }, tool), make("div", { class: "printed" }, text),
    ...(read ? [marked("p", {}, `How to read it: ${read}`)] : []),
    ...(ask ? [marked("p", { class: "soft" }, `How to ask for it: ${ask}.`)] : [])));
  return make("div", { class: "tools" }, make("h4", {}, "What real logs and tools say of it"), ...each);
}

/** What became of the program, below its words: pictures, and what the real tools would print. */
function outcome({ pictures, told }) {
  const parts = [];
  if (pictures.length) parts.push(make("div", { class: "pictures" }, ...pictures.map(picture)));
  if (told.length) parts.push(tools(told));
  return parts;
}

function drawCase(model, root) {
  const shelf = model.get("symptoms").length > 1 ? catalogue(model) : null;
  const symptom = make("h3", { class: "symptom" }), program = make("div");
  const run = button("main", "Run it", () => model.get("busy") !== "" || wish(model, "run"));
  const busy = make("span", { class: "busy", role: "status" });
  const said = make("div", { class: "said", role: "status" }), shown = make("div");
  if (shelf) root.append(shelf.node);
  root.append(symptom, program, make("div", { class: "actions" }, run, busy), said, shown);
  const stops = [
    follow(model, ["at", "symptom", "program"], () => {
      shelf?.choose(model.get("at"));
      symptom.replaceChildren(...marked("span", {}, model.get("symptom")).childNodes);
      program.replaceChildren(listing(model.get("program")));
    }),
    follow(model, ["busy"], () => {
      busy.textContent = model.get("busy");
      run.setAttribute("aria-disabled", model.get("busy") !== "");
    }),
    follow(model, ["mended"], () => shelf?.tick(model.get("mended"))),
    follow(model, ["outcome"], () => {
      said.replaceChildren(...marked("div", {}, model.get("outcome").text).childNodes);
      shown.replaceChildren(...outcome(model.get("outcome")));
    }),
  ];
  return () => stops.forEach((stop) => stop());
}

// ------------------------------------------------------------------- the bench: mend and check

/** A text area with numbers beside its lines; Enter keeps the indentation, Tab moves on. */
function editor(model, check) {
  const numbers = make("div", { class: "numbers", "aria-hidden": "true" });
  const area = make("textarea", {
    "aria-label": "Your edit of the program", spellcheck: "false", wrap: "off", autocapitalize: "off", ...KEYS,
  });
  const measure = () => {
    const lines = area.value.split("\n").length;
    area.rows = lines + 1;
    numbers.textContent = Array.from({ length: lines }, (_, i) => i + 1).join("\n");
  };
  area.addEventListener("input", () => {
    measure();
    model.set("text", area.value);
  });
  area.addEventListener("change", () => model.save_changes());
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.altKey) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) return check();
    const before = area.value.slice(0, area.selectionStart);
    const line = before.slice(before.lastIndexOf("\n") + 1);
    const deeper = line.trimEnd().endsWith(":") ? "    " : "";
    document.execCommand("insertText", false, `\n${line.match(/^ */)[0]}${deeper}`); // keeps undo
  });
  const show = () => {
    if (area.value !== model.get("text")) area.value = model.get("text");
    measure();
  };
  return { node: make("div", { class: "editor" }, numbers, area), area, show };
}

function verdict({ ok, text }) {
  if (!text) return [];
  const mark = make("span", { class: "mark", "aria-hidden": "true" }, ok ? "✓" : "✗");
  const lead = make("strong", {}, ok ? "Right: " : "Not yet: ");
  return [make("div", { class: `verdict ${ok ? "right" : "other"}` }, mark, make("div", { class: "why" }, lead, ...marked("div", {}, text).childNodes))];
}

const CHANGE = { "+": "row added", "-": "row taken-out", " ": "row" };

/** The answer: the fix as a difference, the cause, what does not help, who has met it. */
function answer({ diff, cause, instrument, tried, reports }) {
  const rows = diff.map((line) => make("span", { class: CHANGE[line[0]] }, `${line}\n`));
  return [
    make("h4", {}, "What it was"), marked("p", {}, `${cause}.`),
    marked("p", { class: "soft" }, `What finds it: ${instrument}.`),
    make("h4", {}, "One fix: lines with - go, lines with + come"),
    make("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "The fix", ...KEYS }, ...rows),
    make("h4", {}, "Fixes that people try, and that do not help"), list(tried, (text) => marked("li", {}, text)),
    make("h4", {}, "Others have met it"),
    list(reports, ({ where, what }) => marked("li", {}, `\`${where}\`: ${what}`)),
  ];
}

function drawBench(model, root) {
  const busyNow = () => model.get("busy") !== "";
  const check = () => busyNow() || wish(model, "check", model.get("text"));
  const { node, area, show } = editor(model, check);
  const judge = button("main", "Check", check);
  const again = button("quiet", "Start again", () => {
    model.set("text", model.get("original"));
    wish(model, "again");
    area.focus();
  });
  const reveal = button("quiet", "Show the fix", () => wish(model, "reveal"));
  const busy = make("span", { class: "busy", role: "status" });
  const said = make("div", { role: "status" }), told = make("div", { class: "answer" });
  root.append(
    make("h4", {}, "Mend it"),
    make("p", { class: "soft" }, "Ctrl-Enter in the text checks it. The check runs your program and looks at what it does."),
    node, make("div", { class: "actions" }, judge, again, reveal, busy), said, told);
  const stops = [
    follow(model, ["text"], show),
    follow(model, ["busy"], () => {
      busy.textContent = model.get("busy");
      judge.setAttribute("aria-disabled", busyNow());
    }),
    follow(model, ["verdict"], () => said.replaceChildren(...verdict(model.get("verdict")))),
    follow(model, ["answer"], () => {
      const known = Object.keys(model.get("answer")).length > 0;
      reveal.hidden = known;
      told.replaceChildren(...(known ? answer(model.get("answer")) : []));
    }),
  ];
  return () => stops.forEach((stop) => stop());
}

function render({ model, el }) {
  const part = model.get("part");
  const label = part === "case" ? "The museum of faults" : "Mend the program";
  const root = make("section", { class: `ar-museum ${part}`, "aria-label": label });
  root.addEventListener("keydown", (event) => event.stopPropagation());
  el.append(root);
  return part === "case" ? drawCase(model, root) : drawBench(model, root);
}

export default { render };
