"use strict";
// Text from models and data sets reaches the page through textContent only: it can never become markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const readJson = (id) => JSON.parse($(id).textContent);

  // Light and dark: the system's choice until the reader makes one.
  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  });

  // A phone shows the contents on request.
  if (matchMedia("(max-width: 44rem)").matches) $("contents").open = false;

  // Sorting: descending, ascending, then the order of the report. Empty cells stay last.
  for (const table of document.querySelectorAll("table.results")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = { none: "descending", descending: "ascending", ascending: "none" }[now];
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        const key = (row) => row.cells[column].dataset.sort;
        const compare = (a, b) => {
          const x = key(a), y = key(b);
          if (!x || !y) return !x - !y;
          const order = column ? Number(x) - Number(y) : x.localeCompare(y);
          return sign * order;
        };
        body.append(...(next === "none" ? original : [...original].sort(compare)));
      });
    });
  }

  // Where a number comes from.
  const provenance = readJson("provenance");
  const drawer = $("drawer");
  const list = (pairs) => {
    const dl = make("dl");
    for (const [name, value] of pairs) dl.append(make("dt", "", name), make("dd", "", value));
    return dl;
  };
  const openDrawer = (cell) => {
    $("drawer-title").textContent = cell.label;
    const body = $("drawer-body");
    body.replaceChildren();
    const digits = (values) => values.map((value) => value.toFixed(4)).join(", ");
    const facts = [["Printed", cell.printed]];
    if (cell.mean !== null) facts.push(["Unrounded", String(cell.mean)]);
    if (cell.per_seed.length) facts.push(["By seed", digits(cell.per_seed)]);
    if (cell.minus.length) facts.push(["Minus", digits(cell.minus)]);
    if (cell.interval.length) facts.push(["95 % interval", digits(cell.interval)]);
    if (cell.p !== null) facts.push(["p after Holm", cell.p.toPrecision(3)]);
    if (cell.seeds.length) facts.push(["Seeds", cell.seeds.join(", ")]);
    if (cell.note) facts.push(["Note", cell.note]);
    body.append(list(facts));
    for (const number of cell.files) {
      const file = provenance.files[number];
      body.append(make("h3", "", file.path), list(file.facts));
      for (const [name, text] of file.texts) {
        const details = make("details");
        details.append(make("summary", "", name), make("pre", "", provenance.texts[text]));
        body.append(details);
      }
    }
    drawer.showModal();
    drawer.scrollTop = 0;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.cell");
    if (button) openDrawer(provenance.cells[button.dataset.cell]);
  });
  $("drawer-close").addEventListener("click", () => drawer.close());
  drawer.addEventListener("click", (event) => { if (event.target === drawer) drawer.close(); });

  // Values under the pointer, or under the arrow keys.
  const tip = $("tip");
  const place = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 4))}px`;
  };
  for (const svg of document.querySelectorAll("svg.panel")) {
    const data = JSON.parse(svg.dataset.hover);
    const cursor = svg.querySelector(".cursor");
    let at = 0;
    const show = (px, clientX, clientY) => {
      tip.replaceChildren();
      let head = "";
      for (const line of data.series) {
        let best = 0;
        line.px.forEach((value, i) => { if (Math.abs(value - px) < Math.abs(line.px[best] - px)) best = i; });
        if (!head) {
          head = `${line.x[best]} ${data.x}`;
          tip.append(make("div", "", head));
          cursor.setAttribute("x1", line.px[best]);
          cursor.setAttribute("x2", line.px[best]);
        }
        tip.append(make("div", "", `${line.label}: ${line.y[best]}`));
      }
      cursor.setAttribute("visibility", "visible");
      place(clientX, clientY);
    };
    const hide = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      show(((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width, event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const places = data.series[0].px;
      at = Math.max(0, Math.min(places.length - 1, at + step));
      const box = svg.getBoundingClientRect();
      show(places[at], box.left + (places[at] / svg.viewBox.baseVal.width) * box.width, box.top + 20);
    });
  }
  for (const svg of document.querySelectorAll("svg.heat")) {
    svg.addEventListener("pointermove", (event) => {
      const text = event.target.dataset && event.target.dataset.tip;
      tip.hidden = !text;
      if (!text) return;
      tip.replaceChildren(make("div", "", text));
      place(event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  // Items and responses: one compressed chunk a task, unpacked when it is chosen; only the rows in view exist.
  if (!$("browser-tasks") || !$("list")) return;
  const ROW = 64;
  const tasks = readJson("browser-tasks");
  const SHOW = [
    ["all", "all items"], ["a", "right for the method"], ["not-a", "wrong for the method"],
    ["flip", "flipped between the two"], ["gain", "right here, wrong there"], ["loss", "wrong here, right there"],
    ["none", "without a readable answer"], ["cut", "cut by the length limit"],
  ];
  const option = (value, text) => { const node = make("option", "", text); node.value = value; return node; };
  const [fTask, fA, fB, fShow, fText] = ["f-task", "f-a", "f-b", "f-show", "f-text"].map($);
  tasks.forEach((task, i) => fTask.append(option(i, `${task.title} (${task.told})`)));
  SHOW.forEach(([value, text]) => fShow.append(option(value, text)));
  const view = { data: null, methods: [], rows: [], chosen: -1, texts: [] };
  const box = $("list"), spacer = $("spacer"), detail = $("detail");

  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob($(id).textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  // Mean greedy score over seeds; null where nothing was graded.
  const score = (method, id) => {
    let sum = 0, count = 0;
    for (const model of view.data.models) {
      if (model.method !== method) continue;
      const draw = model.draws[id] && model.draws[id][0];
      if (draw && !(draw[4] & 1)) { sum += draw[2]; count += 1; }
    }
    return count ? sum / count : null;
  };
  const greedy = (method, id) =>
    view.data.models.filter((m) => m.method === method && m.draws[id]).map((m) => m.draws[id][0]);
  const matches = (item, row) => {
    const [a, b] = [score(fA.value, item[0]), score(fB.value, item[0])];
    const wanted = {
      all: () => true,
      a: () => a !== null && a >= 0.5,
      "not-a": () => a !== null && a < 0.5,
      flip: () => a !== null && b !== null && (a >= 0.5) !== (b >= 0.5),
      gain: () => a !== null && b !== null && a >= 0.5 && b < 0.5,
      loss: () => a !== null && b !== null && a < 0.5 && b >= 0.5,
      none: () => greedy(fA.value, item[0]).some((draw) => draw[1] === null),
      cut: () => greedy(fA.value, item[0]).some((draw) => draw[4] & 2),
    }[fShow.value]();
    if (!wanted) return false;
    const text = fText.value.trim().toLowerCase();
    return !text || view.texts[row].includes(text);
  };
  const percent = (value) => (value === null ? "–" : `${Math.round(100 * value)} %`);

  const paint = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 3);
    const last = Math.min(view.rows.length, first + Math.ceil(box.clientHeight / ROW) + 6);
    const nodes = [];
    for (let row = first; row < last; row += 1) {
      const item = view.data.items[view.rows[row]];
      const node = make("div", "item");
      node.id = `item-${row}`;
      node.style.top = `${row * ROW}px`;
      node.setAttribute("role", "option");
      node.setAttribute("aria-posinset", row + 1);
      node.setAttribute("aria-setsize", view.rows.length);
      node.setAttribute("aria-selected", row === view.chosen);
      node.dataset.row = row;
      node.append(make("div", "question", item[2].replace(/\s+/g, " ").slice(0, 200)));
      const told = [...new Set([fA.value, fB.value])].map((method) => `${title(method)} ${percent(score(method, item[0]))}`);
      node.append(make("div", "verdicts", `${item[1]} · ${told.join(" · ")}`));
      nodes.push(node);
    }
    spacer.style.height = `${view.rows.length * ROW}px`;
    spacer.replaceChildren(...nodes);
    if (view.chosen >= 0) box.setAttribute("aria-activedescendant", `item-${view.chosen}`);
    else box.removeAttribute("aria-activedescendant");
  };
  const title = (method) => (view.methods.find((one) => one[0] === method) || [method, method])[1];
  const filter = () => {
    view.rows = [];
    view.data.items.forEach((item, row) => { if (matches(item, row)) view.rows.push(row); });
    view.chosen = -1;
    box.scrollTop = 0;
    $("count").textContent = `${view.rows.length.toLocaleString("en")} of ${view.data.items.length.toLocaleString("en")} items`;
    detail.replaceChildren(make("p", "caption", view.rows.length ? "Choose an item." : "No item fits."));
    paint();
  };

  const verdict = (draw) => {
    if (draw[4] & 1) return make("span", "failed", "not graded");
    if (draw[2] >= 1) return make("span", "right", "right");
    return draw[2] > 0 ? make("span", "failed", `score ${draw[2].toFixed(2)}`) : make("span", "wrong", "wrong");
  };
  const drawNode = (draw, number) => {
    const node = make("div", "draw");
    const line = make("p");
    line.append(number ? `draw ${number}: ` : "greedy: ", verdict(draw));
    line.append(` · answer ${draw[1] === null ? "none found" : JSON.stringify(draw[1])} · ${draw[3]} · ${draw[5]} tokens`);
    if (draw[4] & 2) line.append(" · cut by the length limit");
    if (draw[4] & 4) line.append(" · shown among the examples");
    node.append(line, make("pre", "", draw[0]));
    return node;
  };
  const choose = (row) => {
    if (row < 0 || row >= view.rows.length) return;
    view.chosen = row;
    const top = row * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
    paint();
    const item = view.data.items[view.rows[row]];
    detail.replaceChildren(make("h3", "", item[1]), make("pre", "", item[2]));
    if (item[3]) detail.append(make("p", "caption", `Reference: ${item[3]}`));
    for (const [method] of view.methods) {
      const details = make("details");
      details.open = method === fA.value || method === fB.value;
      details.append(make("summary", "", `${title(method)}: ${percent(score(method, item[0]))} right, greedy`));
      // Filled when opened: an item may have thousands of draws.
      const fillIn = () => {
        if (!details.open || details.dataset.filled) return;
        details.dataset.filled = "yes";
        for (const model of view.data.models) {
          if (model.method !== method || !model.draws[item[0]]) continue;
          if (model.seed !== null) details.append(make("h3", "", `seed ${model.seed}`));
          model.draws[item[0]].forEach((draw, number) => details.append(drawNode(draw, number)));
        }
      };
      details.addEventListener("toggle", fillIn);
      fillIn();
      detail.append(details);
    }
    detail.scrollTop = 0;
  };

  const load = async () => {
    $("count").textContent = "Unpacking …";
    view.data = await unpack(tasks[fTask.value].id);
    view.texts = view.data.items.map((item) => `${item[1]}\n${item[2]}\n${item[3]}`.toLowerCase());
    const [a, b] = [fA.value, fB.value];
    const known = new Map();
    for (const model of view.data.models) known.set(model.method, model.title);
    view.methods = [...known];
    for (const select of [fA, fB]) select.replaceChildren(...view.methods.map(([method, text]) => option(method, text)));
    fA.value = known.has(a) ? a : view.methods[view.methods.length > 1 ? 1 : 0][0];
    fB.value = known.has(b) ? b : view.methods[0][0];
    filter();
    document.documentElement.dataset.items = "ready";
  };
  fTask.addEventListener("change", load);
  for (const select of [fA, fB, fShow]) select.addEventListener("change", filter);
  fText.addEventListener("input", filter);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  let isWaiting = false;
  box.addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; paint(); });
  });
  box.addEventListener("click", (event) => {
    const node = event.target.closest(".item");
    if (node) choose(Number(node.dataset.row));
  });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / ROW) - 1);
    const last = view.rows.length - 1;
    const to = { ArrowDown: view.chosen + 1, ArrowUp: view.chosen - 1, PageDown: view.chosen + page, PageUp: view.chosen - page, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(last, to)));
  });
  // The chunk is unpacked when the section comes near, not while the page opens.
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    load();
  }, { rootMargin: "600px" }).observe($("items"));
})();
