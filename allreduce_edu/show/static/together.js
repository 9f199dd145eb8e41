// Follows static/player.js in one script (show/together.py): several of its pictures, one clock.

const longest = (model) => Math.max(...model.get("boards").map(({ frames }) => frames.steps.length));

/** Make one board: its name, its bytes in words, its picture. */
function figure({ frames, scene, words }) {
  const drawn = picture(frames, scene);
  drawn.root.style.maxWidth = `${Math.min(scene.width, 900)}px`;
  drawn.root.style.minWidth = `${Math.floor(0.54 * scene.width)}px`; // eight ranks fit a narrow page
  const said = html("p", { class: "ar-say" });
  const head = html("p", {}, html("strong", {}, frames.name), html("span", { class: "ar-meta" }, words));
  const element = html("figure", {}, head, drawn.root, said);
  const last = frames.steps.length;
  let shown = null, flight = () => {};
  function show(index, speed) {
    const to = Math.min(index, last);
    if (to === shown) return;
    const label = `${frames.name}, after ${to} of ${last} rounds`;
    flight();
    if (shown === null) drawn.show(to, label);
    else flight = go(drawn, shown, to, speed, label);
    shown = to;
    said.textContent = to === last ? `Done after ${last} round${last === 1 ? "" : "s"}.` : `Round ${to} of ${last}.`;
  }
  return { element, show, stop: () => flight() };
}

function together({ model, el }) {
  let figures = [];
  function put(changes) {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  }
  const seek = (k) => put({ index: Math.max(0, Math.min(longest(model), k)), playing: false });
  const step = (by) => seek(model.get("index") + by);
  const toggle = () => put({ playing: !model.get("playing") });
  const ranks = choice("Ranks", (value) => put({ playing: false, ranks: Number(value) }));
  const speed = choice("Speed", (value) => put({ speed: Number(value) }));
  speed.offer([[0.5, "0.5 ×"], [1, "1 ×"], [2, "2 ×"], [4, "4 ×"]], model.get("speed"));
  const play = button("play", "Play", "Play or pause (space)", toggle);
  const slider = html("input", { type: "range", min: 0, step: 1, "aria-label": "Round", [KEYS]: "true" });
  slider.addEventListener("input", () => seek(Number(slider.value)));
  const where = html("output", { class: "ar-where" });
  const controls = html("div", { class: "ar-controls" },
    button("first", "First", "To the start (Home)", () => seek(0)),
    button("back", "Step back", "Step back (←)", () => step(-1)),
    play,
    button("forward", "Step", "Step (→)", () => step(1)),
    button("last", "Last", "To the end (End)", () => seek(longest(model))),
    html("div", { class: "ar-line" }, slider), where, speed.element, ranks.element);
  const stage = html("div", { class: "ar-several", tabindex: "0", role: "group", [KEYS]: "true" });
  stage.setAttribute("aria-label", "Pictures. Arrow keys step, Home and End jump, space plays.");
  const root = html("div", { class: "ar-player ar-together", role: "group", "aria-label": "Side by side" }, controls, stage);
  el.append(root);

  function build() {
    figures.forEach(({ stop }) => stop());
    figures = model.get("boards").map(figure);
    stage.replaceChildren(...figures.map(({ element }) => element));
    ranks.offer(model.get("offered_ranks").map((n) => [n, n]), model.get("ranks"));
    slider.max = longest(model);
    move();
  }

  function move() {
    const k = Math.min(model.get("index"), longest(model));
    figures.forEach(({ show }) => show(k, model.get("speed")));
    where.textContent = `${k} / ${longest(model)}`;
    slider.value = k;
    slider.setAttribute("aria-valuetext", `round ${k} of ${longest(model)}`);
  }

  function playing() {
    const on = model.get("playing");
    play.setAttribute("aria-label", on ? "Pause" : "Play");
    play.replaceChildren(icon(on ? "pause" : "play"));
  }

  root.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const kind = event.target.localName;
    if (kind === "select" || (kind === "button" && event.key === " ")) return;
    const act = {
      ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => seek(0),
      End: () => seek(longest(model)), " ": toggle,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
  const heard = {
    "change:boards": build, "change:index": move, "change:playing": playing,
    "change:ranks": () => ranks.choose(model.get("ranks")),
    "change:speed": () => speed.choose(model.get("speed")),
  };
  for (const [event, act] of Object.entries(heard)) model.on(event, act);
  build();
  playing();
  return () => {
    figures.forEach(({ stop }) => stop());
    for (const [event, act] of Object.entries(heard)) model.off(event, act);
  };
}

export default {
  initialize: ({ model }) => initialize({ model }, () => longest(model)),
  render: together,
};
