// Follows static/player.js in one script (show/board.py): named controls and a table of before and
// after, above that very player. Python plays every setting; here wishes go out and texts come in.

/** Return a table of texts; the first of each row is its heading. */
function grid({ head, rows }) {
  const cells = ([first, ...rest]) =>
    html("tr", {}, html("th", { scope: "row" }, first), ...rest.map((words) => html("td", {}, words)));
  const heads = html("tr", {}, ...head.map((words) => html("th", { scope: "col" }, words)));
  return html("table", {}, html("thead", {}, heads), html("tbody", {}, ...rows.map(cells)));
}

function board({ model, el }) {
  let wanted = null; // the newest wish, as long as an earlier one is being answered
  const controls = model.get("choices").map(({ name, label, options }) => {
    const control = choice(label, (value) => move(name, typeof options[0][0] === "number" ? Number(value) : value));
    control.offer(options, model.get("settings")[name]);
    return [name, control];
  });
  const typed = html("input", { type: "text", spellcheck: "false", placeholder: "(c + 1) · 10ʳ", [KEYS]: "true" });
  typed.addEventListener("input", () => move("values", typed.value));
  const hint = html("p", { class: "ar-hint", id: `ar-hint-${(serial += 1)}` }, model.get("hint"));
  typed.setAttribute("aria-describedby", hint.id);
  const values = html("label", { class: "ar-choice ar-typed" }, "Values", typed);
  const problem = html("p", { class: "ar-problem", role: "alert" });
  const words = html("p", { class: "ar-words", role: "status" });
  const rows = html("div", { class: "ar-rows" });
  const inner = html("div", { class: "ar-inner" });
  const all = html("button", { type: "button", class: "ar-quiet", [KEYS]: "true" }, "Show all controls");
  const rest = html("span", { class: "ar-rest" });
  all.addEventListener("click", open);
  const row = html("div", { class: "ar-row" }, ...controls.map(([, control]) => control.element), values, all, rest);
  el.append(html("section", { class: "ar-board", "aria-label": "Board" }, row, hint, problem, rows, words, inner));

  const waiting = () => model.get("heard") < (model.get("wish").asked ?? 0);
  const latest = () => wanted ?? (waiting() ? model.get("wish") : model.get("settings"));

  function move(name, value) {
    wanted = { ...latest(), [name]: value };
    ask();
  }

  /** Ask the kernel for the newest wish, unless it is still at an earlier one. */
  function ask() {
    if (wanted === null || waiting()) return;
    model.set("wish", { ...wanted, asked: (model.get("wish").asked ?? 0) + 1 });
    wanted = null;
    model.save_changes();
  }

  function open() {
    model.set("opened", true);
    model.save_changes();
    controls[1][1].element.querySelector("select").focus();
  }

  /** Show the first control alone, with the others in words, or all of them. */
  function unfold() {
    const opened = model.get("opened");
    for (const element of [...controls.slice(1).map(([, control]) => control.element), values, hint]) {
      element.hidden = !opened;
    }
    all.hidden = rest.hidden = opened;
  }

  function place() {
    const now = latest();
    const others = model.get("choices").slice(1).map(({ name, label, options }) =>
      `${label}: ${options.find(([value]) => value === now[name])[1]}`);
    rest.textContent = [...others, `Values: ${now.values || typed.placeholder}`].join(" · ");
    for (const [name, control] of controls) control.choose(now[name]);
    if (document.activeElement !== typed) typed.value = now.values;
  }

  function tell() {
    problem.textContent = model.get("problem");
    for (const part of [rows, words, inner]) part.classList.toggle("ar-stale", Boolean(model.get("problem")));
  }

  const draw = () => rows.replaceChildren(grid(model.get("table")));
  const say = () => (words.textContent = model.get("words"));
  const heard = {
    "change:settings": place, "change:problem": tell, "change:table": draw, "change:words": say,
    "change:heard": ask, "change:opened": unfold,
  };
  for (const [event, act] of Object.entries(heard)) model.on(event, act);
  unfold();
  place();
  draw();
  say();
  tell();
  const end = render({ model, el: inner });
  return () => {
    end();
    for (const [event, act] of Object.entries(heard)) model.off(event, act);
  };
}

export default { initialize, render: board };
