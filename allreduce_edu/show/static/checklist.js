// The order of investigation: questions with Yes and No, one after the other. All words come from
// Python (lessons/investigation.py); where the reader is, is counted here, without the kernel.

const MARK = { yes: "✓", no: "✗", here: "▸", later: "" };

/** What a "no" may turn out to be: the symptoms of its wing. */
function exhibits(step) {
  if (!step.exhibits.length) return [];
  const items = step.exhibits.map(({ name, symptom }) =>
    make("li", {}, marked("span", {}, symptom), " ", make("code", {}, `Visit("${name}")`)));
  return [make("p", {}, "Is it one of these? The museum has them to run and to mend:"), make("ul", {}, ...items)];
}

function render({ model, el }) {
  const steps = model.get("steps");
  const root = make("section", { class: "ar-checklist", "aria-label": "Checklist: what to ask, in this order" });
  const list = make("ol", {}), status = make("p", { class: "end", role: "status" });
  root.addEventListener("keydown", (event) => event.stopPropagation());
  root.append(make("strong", { class: "title" }, "What to ask, in this order"), list, status);
  el.append(root);

  /** Keep the first answers and perhaps one more, and put the focus where it goes on. */
  function move(answers) {
    model.set("answers", answers);
    model.save_changes();
    (list.querySelector(".here button") ?? list.querySelector(".no button") ?? list.querySelector("li:last-child button")).focus();
  }

  function item(step, i, answers) {
    const stopped = answers.includes("no"), answer = answers[i];
    const state = answer ?? (i === answers.length && !stopped ? "here" : "later");
    const node = make("li", { class: state });
    const head = make("div", { class: "head" });
    head.append(make("span", { class: "mark", "aria-hidden": "true" }, MARK[state]),
      marked("span", { class: "question", id: `${id}-${i}` }, step.question));
    if (answer) {
      head.append(make("span", { class: "answer" }, answer === "yes" ? "Yes" : "No"),
        button("quiet", "Change", () => move(answers.slice(0, i))));
      head.lastChild.setAttribute("aria-label", `Change the answer to question ${i + 1}`);
    }
    node.append(head);
    if (state === "here") node.append(...asked(step, i, answers));
    if (answer) node.append(marked("p", { class: "means" }, step[answer]));
    if (answer === "no") node.append(...exhibits(step));
    return node;
  }

  function asked(step, i, answers) {
    const ways = make("ul", {}, ...step.ways.map((way) => marked("li", {}, way)));
    const buttons = make("div", { class: "actions", role: "group", "aria-labelledby": `${id}-${i}` },
      button("main", "Yes", () => move([...answers, "yes"])), button("main", "No", () => move([...answers, "no"])));
    return [make("p", { class: "soft" }, "How to ask it on a real job:"), ways, buttons];
  }

  function end(answers) {
    if (answers.includes("no")) return "Mend this first, then ask again from the top: one fault hides another.";
    return answers.length === steps.length ? "Five times yes. The fault, if there is one, is not in the ranks." : "";
  }

  function draw() {
    const answers = model.get("answers");
    list.replaceChildren(...steps.map((step, i) => item(step, i, answers)));
    status.textContent = end(answers);
  }

  const id = `checklist-${Math.random().toString(36).slice(2)}`;
  draw();
  model.on("change:answers", draw);
  return () => model.off("change:answers", draw);
}

export default { render };
