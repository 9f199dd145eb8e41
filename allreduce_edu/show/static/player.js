// Draws the frames that Python computed, one after another. No algorithm lives here: states are
// the start plus the differences of each step, positions come with the scene (show/scene.py),
// and the layers are those of the static picture (show/draw.py).

const SVG = "http://www.w3.org/2000/svg";
const PACE = 1700; // milliseconds a round takes at speed 1
const KEYS = "data-lm-suppress-shortcuts"; // JupyterLab leaves keys to elements that carry it
const ICONS = {
  first: "M5.5 4.5v11M14.5 4.5v11L7 10z",
  back: "M12.5 4.5L7 10l5.5 5.5",
  play: "M6.5 4l9 6-9 6z",
  pause: "M7.5 4.5v11M12.5 4.5v11",
  forward: "M7.5 4.5L13 10l-5.5 5.5",
  last: "M14.5 4.5v11M5.5 4.5v11L13 10z",
};
const PHASES = { reduce: "add", copy: "copy", mixed: "add and copy" };
let serial = 0;

// ------------------------------------------------------------------- elements

function html(name, keys = {}, ...inner) {
  return fill(document.createElement(name), keys, inner);
}

function svg(name, keys = {}, ...inner) {
  return fill(document.createElementNS(SVG, name), keys, inner);
}

function fill(element, keys, inner) {
  for (const [key, value] of Object.entries(keys)) element.setAttribute(key, value);
  element.append(...inner);
  return element;
}

function text(x, y, words, keys = {}) {
  return svg("text", { x, y, ...keys }, words);
}

// --------------------------------------------------------------------- states

/** Return what every cell holds at every frame; frames share what did not change. */
function states(frames) {
  const blank = frames.start.mask.map(() => 0);
  const all = [{ mask: frames.start.mask, value: frames.start.value, twice: blank }];
  for (const step of frames.steps) {
    const { mask, value, twice } = all[all.length - 1];
    const next = { mask: [...mask], value: [...value], twice: [...twice] };
    step.cell.forEach((cell, i) => {
      next.mask[cell] = step.mask[i];
      next.value[cell] = step.value[i];
      next.twice[cell] = step.twice[i];
    });
    all.push(next);
  }
  return all;
}

function bits(mask, ranks) {
  return Array.from({ length: ranks }, (_, r) => r).filter((r) => (mask >> r) & 1);
}

// --------------------------------------------------------------------- layers

function cells(scene, which) {
  const [w, h] = scene.size;
  return which.map((c) => `M${scene.cell[c][0]} ${scene.cell[c][1]}h${w}v${h}h-${w}z`).join("");
}

function segments(scene, masks, ranks, hollow = true) {
  const [w, h] = scene.seg_size;
  const edge = w > 4 ? 2 : 1;
  const hole = `m${edge} ${edge}v${h - 2 * edge}h${w - 2 * edge}v-${h - 2 * edge}z`;
  let d = "";
  masks.forEach((mask, c) => {
    const [x, y] = scene.cell[c];
    for (const r of ranks) {
      if (!((mask >> r) & 1)) continue;
      d += `M${x + scene.seg[r][0]} ${y + scene.seg[r][1]}h${w}v${h}h-${w}z`;
      if (hollow && r > 7) d += hole;
    }
  });
  return d;
}

/** Return the places of the shares that are not there; of many ranks, all places as one. */
function free(scene, masks) {
  if (scene.ranks <= 8) return segments(scene, masks.map((mask) => ~mask), bits(-1, scene.ranks), false);
  const [left, top, w, h] = scene.strip;
  return scene.cell.map(([x, y]) => `M${x + left} ${y + top}h${w}v${h}h-${w}z`).join("");
}

function marks(scene, which, shape) {
  const [dx, dy] = scene.mark;
  return which.map((c) => `M${scene.cell[c][0] + dx} ${scene.cell[c][1] + dy}${shape}`).join("");
}

/** Point out the cells that were sent, where the arrow itself does not start at the cell. */
function sent(scene, step, k) {
  const [w, h] = scene.size;
  const tips = new Set();
  step.src.forEach((src, i) => {
    if (scene.exact[scene.ways[k][i]]) return;
    const [x, y] = scene.cell[src * scene.chunks + step.chunk[i]];
    const [to] = scene.cell[step.dst[i] * scene.chunks + step.chunk[i]];
    const [side, tip] = to < x ? [x - 1, "l-5 4 5 4z"] : [x + w + 1, "l5 4-5 4z"];
    tips.add(`M${side} ${y + Math.floor(h / 2) - 4}${tip}`);
  });
  return [...tips].join("");
}

function layers(frames, scene, now, k) {
  const step = k ? frames.steps[k - 1] : { cell: [], src: [], wrong_cells: [] };
  const bad = step.wrong_cells;
  const wrong = new Set(bad);
  const every = Array.from({ length: frames.ranks }, (_, r) => r);
  const all = now.mask.map((_, c) => c);
  const done = all.filter((c) => now.mask[c] === frames.goal[c] && !now.twice[c] && !wrong.has(c));
  const over = k === frames.steps.length;
  const paths = {
    cell: cells(scene, all),
    tint: cells(scene, step.cell),
    hatch: cells(scene, bad),
    void: free(scene, now.mask),
  };
  for (const r of every) paths[`r${r}`] = segments(scene, now.mask, [r]);
  return Object.assign(paths, {
    twice: segments(scene, now.twice, every, false),
    veil: cells(scene, all.filter((c) => over && frames.goal[c] < 0 && !wrong.has(c))),
    done: cells(scene, done),
    bad: cells(scene, bad),
    check: marks(scene, done, "m-4 0l3 3.5 5-7"),
    cross: marks(scene, bad, "m-4-4l8 8m0-8l-8 8"),
    tip: sent(scene, step, k - 1),
  });
}

/** Return the different arrows of round k as [what the receiver does, path]. */
function ways(scene, step, k) {
  const kinds = { copy: new Set(), add: new Set() };
  scene.ways[k].forEach((way, i) => kinds[step.reduce[i] ? "add" : "copy"].add(scene.paths[way]));
  return Object.entries(kinds).flatMap(([kind, paths]) => [...paths].map((d) => [kind, d]));
}

// -------------------------------------------------------------------- picture

/** Build the SVG of a scene; returns it with what draws a frame and what moves between two. */
function picture(frames, scene) {
  const id = `ar-${(serial += 1)}`;
  const all = states(frames);
  const title = svg("title", { id: `${id}-title` });
  const root = svg("svg", {
    viewBox: `0 0 ${scene.width} ${scene.height}`, role: "img", "aria-labelledby": `${id}-title`,
  });
  root.style.maxWidth = `${1.2 * scene.width}px`;
  root.style.minWidth = `${Math.round(0.62 * scene.width)}px`;
  const layer = {};
  const work = svg("g");
  for (const name of Object.keys(layers(frames, scene, all[0], 0))) {
    layer[name] = svg("path", { class: `ar-${name}` });
    work.append(layer[name]);
    if (name === "hatch") work.append(names(scene));
    if (name === "twice") work.append((layer.digits = digits(scene)));
  }
  layer.hatch.setAttribute("fill", `url(#${id}-hatch)`);
  const values = svg("g", { class: "ar-value", "text-anchor": "end", "font-size": scene.value[2] });
  for (const [x, y] of scene.cell) values.append(text(x + scene.value[0], y + scene.value[1], ""));
  const arrows = svg("g");
  const flying = svg("g", { class: "ar-flying" });
  const meter = bars(scene);
  root.append(title, defs(id), ground(scene), work, values, arrows, meter.element, key(scene, id));
  root.append(flying);

  function pointTo(k) {
    const made = k ? ways(scene, frames.steps[k - 1], k - 1) : [];
    arrows.replaceChildren(
      ...made.map(([kind, d]) => svg("path", { class: `ar-${kind}`, d, "marker-end": `url(#${id}-tip)` })),
    );
  }

  function show(k, label) {
    const now = all[k];
    title.textContent = label;
    flying.replaceChildren();
    for (const [name, d] of Object.entries(layers(frames, scene, now, k))) {
      if (layer[name].getAttribute("d") !== d) layer[name].setAttribute("d", d);
    }
    if (scene.digit) layer.digits.childNodes.forEach((node, c) => spell(scene, node, c, now.mask[c]));
    values.childNodes.forEach((node, c) => {
      const fits = now.value[c].length <= scene.value[3]; // a cut number would look like another
      const words = fits ? now.value[c] : "";
      if (node.textContent !== words) node.textContent = words;
    });
    meter.show(k);
    pointTo(k);
  }

  /** Put what round k sends where it is when the part `t` of its way is done. */
  function fly(k) {
    const step = frames.steps[k - 1];
    const before = all[k - 1].mask;
    layer.tip.setAttribute("d", "");
    pointTo(k);
    const moves = step.src.map((src, i) => {
      const chip = card(scene, before[src * frames.chunks + step.chunk[i]]);
      flying.append(chip);
      return [chip, route(scene, step, k - 1, i)];
    });
    return (t) => {
      for (const [chip, at] of moves) {
        const { x, y } = at(t);
        chip.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      }
    };
  }

  /** Say what the cell under a point of the screen holds, at frame k. */
  function probe(k, clientX, clientY) {
    const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(root.getScreenCTM().inverse());
    const [w, h] = scene.size;
    const c = scene.cell.findIndex(([cx, cy]) => x >= cx && x <= cx + w && y >= cy && y <= cy + h);
    if (c < 0) return "";
    const shares = bits(all[k].mask[c], frames.ranks).join(", ") || "none";
    const twice = bits(all[k].twice[c], frames.ranks).join(", ");
    const [rank, chunk] = [Math.floor(c / frames.chunks), c % frames.chunks];
    const value = all[k].value[c] ? `; value ${all[k].value[c]}` : "";
    const more = twice ? `; more than once: ${twice}` : "";
    return `Rank ${rank}, chunk ${chunk}: shares of ranks ${shares}${more}${value}.`;
  }

  return { root, show, fly, probe };
}

function defs(id) {
  const tip = svg("marker", {
    id: `${id}-tip`, refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto",
    markerUnits: "userSpaceOnUse",
  }, svg("path", { class: "ar-tip", d: "M0 0L8 4L0 8z" }));
  const hatch = svg("pattern", { id: `${id}-hatch`, width: 5, height: 5, patternUnits: "userSpaceOnUse" },
    svg("path", { class: "ar-stripe", d: "M-1 1l2-2M0 5l5-5M4 6l2-2" }));
  return svg("defs", {}, tip, hatch);
}

function ground(scene) {
  const group = svg("g");
  for (const [x, y, width, height] of scene.box) {
    group.append(svg("rect", { class: "ar-box", x, y, width, height, rx: 7 }));
  }
  scene.head.forEach(([x, y], r) => {
    group.append(svg("rect", { class: `ar-r${r}`, x: x - 25, y, width: 50, height: 18, rx: 9 }));
    const keys = { class: "ar-head", "text-anchor": "middle", "font-size": 11 };
    group.append(text(x, y + 13, `rank ${r}`, keys));
  });
  return group;
}

function names(scene) {
  const group = svg("g", { class: "ar-soft", "font-size": scene.label });
  group.append(...scene.labels.map(([x, y, words]) => text(x, y, words)));
  return group;
}

function digits(scene) {
  const group = svg("g", { class: "ar-digit", "text-anchor": "middle", "font-size": scene.digit });
  if (scene.digit) group.append(...scene.cell.map(() => svg("text")));
  return group;
}

/** Write the digits of the shares in `mask`, each in its own place. */
function spell(scene, node, c, mask) {
  const held = bits(mask, scene.ranks);
  const words = held.join("");
  if (node.textContent === words) return;
  const [[x, y], [wide, high]] = [scene.cell[c], scene.seg_size];
  node.setAttribute("x", held.map((r) => x + scene.seg[r][0] + wide / 2).join(" "));
  node.setAttribute("y", y + scene.seg[0][1] + Math.floor((high + scene.digit) / 2) - 1);
  node.textContent = words;
}

/** Draw what travels: the shares in `mask` on a card whose middle is 0, 0. */
function card(scene, mask) {
  const [left, top, w, h] = scene.strip;
  const alone = { ...scene, cell: [[-left - w / 2, -top - h / 2]] };
  const size = { x: -w / 2 - 4, y: -h / 2 - 4, width: w + 8, height: h + 8, rx: 4 };
  const group = svg("g", {}, svg("rect", { class: "ar-chip", ...size }));
  group.append(svg("path", { class: "ar-void", d: free(alone, [mask]) }));
  for (const r of bits(mask, scene.ranks)) {
    group.append(svg("path", { class: `ar-r${r}`, d: segments(alone, [mask], [r]) }));
  }
  const digit = digits(alone);
  if (scene.digit) spell(alone, digit.firstChild, 0, mask);
  group.append(digit);
  return group;
}

/** Return the way of transfer i of round k: along its arrow, or on the board from cell to cell. */
function route(scene, step, k, i) {
  if (scene.view === "ring") {
    const path = svg("path", { d: scene.paths[scene.ways[k][i]] });
    const long = path.getTotalLength();
    return (t) => path.getPointAtLength(t * long);
  }
  const [left, top, w, h] = scene.strip;
  const [a, b] = [step.src[i], step.dst[i]].map((r) => scene.cell[r * scene.chunks + step.chunk[i]]);
  return (t) => ({
    x: a[0] + t * (b[0] - a[0]) + left + w / 2,
    y: a[1] + t * (b[1] - a[1]) + top + h / 2,
  });
}

function bars(scene) {
  const { x: at, bar: width, base, full, title, port } = scene.meter;
  const element = svg("g", {}, text(...title, { class: "ar-soft", "font-size": 11 }));
  const keys = { "font-size": 10, "text-anchor": "middle" };
  const each = at.map((x, r) => {
    const bar = svg("rect", { class: "ar-bar", x: x - width / 2, width });
    const words = text(x, base - full - 4, "", { class: "ar-text", ...keys });
    const trough = { class: "ar-void", x: x - width / 2, y: base - full, width, height: full };
    element.append(svg("rect", trough), bar, words);
    element.append(text(x, base + 13, `rank ${r}`, { class: "ar-soft", ...keys }));
    return [bar, words];
  });
  function show(k) {
    port[k].forEach(([high, words], r) => {
      fill(each[r][0], { y: base - high, height: high }, []);
      each[r][1].textContent = words;
    });
  }
  return { element, show };
}

function key(scene, id) {
  const at = scene.legend;
  const group = svg("g", { class: "ar-soft", "font-size": 11 });
  for (const kind of ["add", "copy"]) {
    group.append(svg("path", { class: `ar-${kind}`, d: at[kind], "marker-end": `url(#${id}-tip)` }));
  }
  group.append(svg("path", { class: "ar-check", d: `M${at.check[0]} ${at.check[1]}m-4 0l3 3.5 5-7` }));
  group.append(...at.texts.map((each) => text(...each)));
  return group;
}

// ------------------------------------------------------------------- controls

function icon(name) {
  const keys = { viewBox: "0 0 20 20", "aria-hidden": "true" };
  return svg("svg", keys, svg("path", { class: `ar-icon-${name}`, d: ICONS[name] }));
}

function button(name, label, hint, onClick) {
  const keys = { type: "button", class: "ar-button", "aria-label": label, title: hint, [KEYS]: "true" };
  const element = html("button", keys, icon(name));
  element.addEventListener("click", onClick);
  return element;
}

function choice(label, onChange) {
  const select = html("select", { "aria-label": label, [KEYS]: "true" });
  const element = html("label", { class: "ar-choice" }, label, select);
  select.addEventListener("change", () => onChange(select.value));
  const choose = (value) => (select.value = String(value));
  function offer(options, value) {
    select.replaceChildren(...options.map(([key, words]) => html("option", { value: key }, words)));
    choose(value);
    element.hidden = options.length < 2;
  }
  return { element, offer, choose };
}

function logbook(frames, seek) {
  const list = html("ol");
  const items = frames.steps.map((step, k) => {
    const title = `Round ${k + 1}: ${PHASES[step.phase]}`;
    const jump = html("button", { type: "button", tabindex: "-1", [KEYS]: "true" }, title);
    jump.addEventListener("click", () => seek(k + 1));
    const lines = step.log.map((words) => html("li", {}, words));
    const faults = step.wrong.map((words) => html("li", { class: "ar-fault" }, words));
    const item = html("li", {}, jump, html("ul", {}, ...lines, ...faults));
    list.append(item);
    return item;
  });
  const keys = { class: "ar-log", tabindex: "0", role: "region", "aria-label": "Transfers", [KEYS]: "true" };
  const wait = html("p", {}, "The sums of each round appear here as you step.");
  const element = html("div", keys, wait, list);
  let marked = null;
  function mark(k) { // what lies ahead stays hidden: it would answer the questions
    items.forEach((item, i) => { item.hidden = i >= k; });
    wait.hidden = k > 0;
    marked?.removeAttribute("aria-current");
    marked = items[k - 1] ?? null;
    marked?.setAttribute("aria-current", "step");
    const top = marked ? marked.offsetTop - 6 : 0;
    element.scrollTop = top; // not scrollIntoView, which would move the notebook as well
  }
  return { element, mark };
}

/** Draw a thin line of the rounds: where it adds, where it copies, where it has gone wrong. */
function track(frames) {
  const pieces = frames.steps.map((step) => html("span", { class: `ar-${PHASES[step.phase].split(" ")[0]}` }));
  const element = html("div", { class: "ar-track", "aria-hidden": "true" }, ...pieces);
  const mark = (k) => pieces.forEach((piece, i) =>
    piece.classList.toggle("ar-fault", i < k && frames.steps[i].wrong.length > 0));
  return { element, mark };
}

// --------------------------------------------------------------------- widget

/** The clock: one per model, however often it is displayed, so that it never ticks twice. */
function initialize({ model }, last = () => model.get("frames").steps.length) {
  let timer;
  function tick() {
    if (model.get("index") < last()) model.set("index", model.get("index") + 1);
    if (model.get("index") >= last()) model.set("playing", false);
    model.save_changes();
    if (model.get("playing")) wait();
  }
  function wait() {
    clearTimeout(timer);
    timer = setTimeout(tick, PACE / model.get("speed"));
  }
  function start() {
    clearTimeout(timer);
    if (!model.get("playing")) return;
    if (model.get("index") >= last()) model.set("index", 0);
    timer = setTimeout(tick, 250);
  }
  model.on("change:playing", start);
  start();
  return () => clearTimeout(timer);
}

/** Go to another frame: fly if it is one step away, else jump. Returns how to stop on the way. */
function go(picture, from, to, speed, label) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (calm || document.hidden || Math.abs(to - from) > 1) {
    picture.show(to, label);
    return () => {};
  }
  picture.show(Math.min(from, to), label);
  const at = picture.fly(Math.max(from, to));
  const long = Math.min(900, (0.55 * PACE) / speed);
  let start, flight;
  function frame(time) {
    start ??= time;
    const t = Math.min(1, (time - start) / long);
    const eased = t < 0.5 ? 2 * t * t : 1 - 2 * (1 - t) * (1 - t);
    at(to > from ? eased : 1 - eased);
    if (t < 1) flight = requestAnimationFrame(frame);
    else picture.show(to, label);
  }
  at(to > from ? 0 : 1);
  flight = requestAnimationFrame(frame);
  return () => cancelAnimationFrame(flight);
}

function render({ model, el }) {
  let now = {}; // what belongs to the frames at hand
  let shown = 0; // the frame that is drawn
  let flight = () => {}; // how to stop what is moving

  function put(changes) {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  }
  const last = () => now.frames.steps.length;
  const seek = (k) => put({ index: Math.max(0, Math.min(last(), k)), playing: false });
  const step = (by) => seek(model.get("index") + by);
  const toggle = () => put({ playing: !model.get("playing") });
  const ask = (name, value) => {
    put({ playing: false, [name]: Number(value) });
    wait.textContent = "Asking the kernel …";
  };

  const name = html("strong");
  const meta = html("span", { class: "ar-meta" });
  const ranks = choice("Ranks", (value) => ask("ranks", value));
  const pieces = choice("Chunks per block", (value) => ask("pieces", value));
  const view = choice("View", (value) => put({ view: value }));
  const wait = html("p", { class: "ar-wait", role: "status" });
  const stage = html("div", { class: "ar-stage", tabindex: "0", role: "group", [KEYS]: "true" });
  stage.setAttribute("aria-label", "Picture. Arrow keys step, Home and End jump, space plays.");
  const note = html("p", { class: "ar-note" });
  const said = html("p", { class: "ar-say" });
  const faults = html("ul", { class: "ar-faults" });
  const live = html("div", { "aria-live": "polite" }, said, faults);
  const play = button("play", "Play", "Play or pause (space)", toggle);
  const slider = html("input", { type: "range", min: 0, step: 1, "aria-label": "Round", [KEYS]: "true" });
  slider.addEventListener("input", () => seek(Number(slider.value)));
  const where = html("output", { class: "ar-where" });
  const speed = choice("Speed", (value) => put({ speed: Number(value) }));
  speed.offer([[0.5, "0.5 ×"], [1, "1 ×"], [2, "2 ×"], [4, "4 ×"]], model.get("speed"));
  const line = html("div", { class: "ar-line" }, slider);
  const controls = html("div", { class: "ar-controls" },
    button("first", "First", "To the start (Home)", () => seek(0)),
    button("back", "Step back", "Step back (←)", () => step(-1)),
    play,
    button("forward", "Step", "Step (→)", () => step(1)),
    button("last", "Last", "To the end (End)", () => seek(last())),
    line, where, speed.element);
  const aside = html("div", { class: "ar-aside" });
  const root = html("div", { class: "ar-player", role: "group" },
    html("div", { class: "ar-top" }, name, meta, ranks.element, pieces.element, view.element),
    wait,
    html("div", { class: "ar-main" },
      html("div", { class: "ar-left" }, stage, note, controls, live), aside));
  el.append(root);

  /** Take new frames, or another view of them. */
  function build() {
    const frames = model.get("frames");
    const scenes = model.get("scenes");
    const chosen = model.get("view") in scenes ? model.get("view") : Object.keys(scenes)[0];
    const scene = scenes[chosen];
    const log = logbook(frames, seek);
    now = { frames, scene, log, picture: picture(frames, scene) };
    flight();
    wait.textContent = model.get("problem");
    root.setAttribute("aria-label", `Player: ${frames.name}`);
    root.classList.toggle("ar-wide", scene.width > 760);
    name.textContent = frames.name;
    meta.textContent = [
      count(frames.ranks, "rank"), count(frames.chunks, "chunk"), count(frames.steps.length, "round"),
    ].join(", ");
    ranks.offer(model.get("offered_ranks").map((n) => [n, n]), model.get("ranks"));
    pieces.offer(model.get("offered_pieces").map((n) => [n, n]), model.get("pieces"));
    view.offer(Object.keys(scenes).map((each) => [each, each]), chosen);
    slider.max = frames.steps.length;
    now.track = track(frames);
    line.replaceChildren(slider, now.track.element);
    stage.replaceChildren(now.picture.root);
    aside.replaceChildren(html("h4", {}, "Transfers"), log.element);
    note.textContent = `Values: ${frames.note}.`;
    shown = model.get("index");
    write();
    now.picture.show(shown, label(shown));
  }

  const label = (k) => `${now.frames.name}, ${place(k)}`;
  const place = (k) => (k ? `after ${k} of ${last()} rounds` : `start of ${last()} rounds`);

  /** Say in words where the player stands. */
  function write() {
    const k = model.get("index");
    const { say, wrong } = k ? now.frames.steps[k - 1] : { say: now.scene.opening, wrong: [] };
    said.textContent = say;
    faults.replaceChildren(...wrong.map((words) => html("li", {}, words)));
    where.textContent = `${k} / ${last()}`;
    slider.value = k;
    slider.setAttribute("aria-valuetext", place(k));
    now.log.mark(k);
    now.track.mark(k);
  }

  /** Go to the index of the model: fly if it is one step away, else jump. */
  function move() {
    const [from, to] = [shown, Math.min(model.get("index"), last())];
    if (from === to) return;
    flight();
    shown = to;
    write();
    flight = go(now.picture, from, to, model.get("speed"), label(to));
  }

  /** Show the numbers that the kernel holds, and what it says about those it refused. */
  function refused() {
    ranks.choose(model.get("ranks"));
    pieces.choose(model.get("pieces"));
    wait.textContent = model.get("problem");
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
      End: () => seek(last()), " ": toggle,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
  stage.addEventListener("pointermove", (event) => {
    note.textContent = now.picture.probe(shown, event.clientX, event.clientY) || `Values: ${now.frames.note}.`;
  });
  stage.addEventListener("pointerleave", () => (note.textContent = `Values: ${now.frames.note}.`));
  stage.addEventListener("click", () => stage.focus({ preventScroll: true }));

  const heard = {
    "change:frames": build,
    "change:view": build,
    "change:index": move,
    "change:playing": playing,
    "change:problem": refused,
    "change:ranks": refused,
    "change:pieces": refused,
    "change:speed": () => speed.choose(model.get("speed")),
  };
  for (const [events, act] of Object.entries(heard)) model.on(events, act);
  build();
  playing();
  return () => {
    flight();
    for (const [events, act] of Object.entries(heard)) model.off(events, act);
  };
}

function count(n, what) {
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}

export default { initialize, render };
