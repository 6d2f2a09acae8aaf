"use strict";
(() => {
  const tip = document.getElementById("tip");
  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  function show(event, region) {
    const shown = region.operators.slice(0, 8), more = region.operators.length - shown.length;
    const parts = [make("b", region.title), make("span", region.backend), ...region.lines.map((line) => make("p", line))];
    if (shown.length) parts.push(make("p", shown.join("\n") + (more > 0 ? "\nand " + more + " more" : ""), "ops"));
    tip.replaceChildren(...parts);
    tip.style.whiteSpace = "pre-line";
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 16, innerWidth - box.width - 8);
    const below = event.clientY + 18;
    tip.style.left = Math.max(8, x) + "px";
    tip.style.top = (below + box.height < innerHeight ? below : Math.max(8, event.clientY - box.height - 12)) + "px";
  }

  function hover(bucket, data) {
    const graph = bucket.querySelector(".graph");
    const marks = new Map();
    bucket.querySelectorAll("[data-region]").forEach((element) => {
      const index = +element.dataset.region;
      if (!marks.has(index)) marks.set(index, []);
      marks.get(index).push(element);
    });
    const lines = [...bucket.querySelectorAll(".edges path")];
    const clear = () => {
      graph?.classList.remove("focus");
      bucket.querySelectorAll(".on,.near").forEach((element) => element.classList.remove("on", "near"));
      lines.forEach((line) => line.classList.remove("in", "out"));
      tip.hidden = true;
    };
    const focus = (index) => {
      clear();
      marks.get(index).forEach((element) => element.classList.add("on"));
      graph?.classList.add("focus");
      [index, ...data[index].before, ...data[index].after].forEach((i) =>
        marks.get(i).forEach((element) => element.classList.contains("box") && element.classList.add("near")));
      lines.forEach((line) => {
        line.classList.toggle("in", +line.dataset.to === index);
        line.classList.toggle("out", +line.dataset.from === index);
      });
    };
    let current = -1;
    bucket.addEventListener("pointermove", (event) => {
      const element = event.target.closest("[data-region]");
      if (!element || event.buttons) { if (current >= 0) clear(); current = -1; return; }
      const index = +element.dataset.region;
      if (index !== current) focus(index);
      current = index;
      show(event, data[index]);
    });
    bucket.addEventListener("pointerleave", () => { clear(); current = -1; });
  }

  function zoom(bucket) {
    const canvas = bucket.querySelector(".canvas"), graph = bucket.querySelector(".graph");
    if (!graph) return () => {};
    const [, , width, height] = graph.getAttribute("viewBox").split(" ").map(Number);
    let scale = 1;
    const apply = (next, event) => {
      const before = scale;
      scale = Math.min(6, Math.max(0.15, next));
      const box = canvas.getBoundingClientRect();
      const x = event ? event.clientX - box.left : box.width / 2, y = event ? event.clientY - box.top : 0;
      const left = (canvas.scrollLeft + x) * scale / before - x, top = (canvas.scrollTop + y) * scale / before - y;
      graph.setAttribute("width", width * scale);
      graph.setAttribute("height", height * scale);
      canvas.scrollLeft = left;
      canvas.scrollTop = top;
    };
    const fit = () => apply(Math.min(1, (canvas.clientWidth - 14) / width));
    const actions = { in: () => apply(scale * 1.3), out: () => apply(scale / 1.3), one: () => apply(1), fit };
    bucket.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", actions[button.dataset.zoom]));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      apply(scale * Math.exp(-event.deltaY / 300), event);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const from = { x: event.clientX, y: event.clientY, left: canvas.scrollLeft, top: canvas.scrollTop };
      canvas.classList.add("drag");
      const move = (next) => {
        canvas.scrollLeft = from.left - next.clientX + from.x;
        canvas.scrollTop = from.top - next.clientY + from.y;
      };
      const stop = () => {
        canvas.classList.remove("drag");
        removeEventListener("pointermove", move);
        removeEventListener("pointerup", stop);
      };
      addEventListener("pointermove", move);
      addEventListener("pointerup", stop);
    });
    if (canvas.clientWidth) fit();
    return fit;
  }

  function search(bucket, data) {
    const input = bucket.querySelector(".tools input");
    if (!input) return;
    const found = bucket.querySelector(".found");
    input.addEventListener("input", () => {
      const word = input.value.trim().toLowerCase();
      const hits = new Set();
      if (word) data.forEach((region, index) => {
        if ([region.title, ...region.operators, ...region.lines.slice(-1)].some((text) => text.toLowerCase().includes(word))) hits.add(index);
      });
      found.textContent = word ? (hits.size === 1 ? "1 region" : hits.size + " regions") : "";
      let first = null;
      bucket.querySelectorAll(".box").forEach((box) => {
        const hit = hits.has(+box.dataset.region);
        box.classList.toggle("hit", hit);
        if (hit && !first) first = box;
      });
      bucket.querySelectorAll(".regions tbody tr").forEach((row) => { row.hidden = Boolean(word) && !hits.has(+row.dataset.region); });
      if (first) first.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  }

  function sorting(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const value = (row, column) => {
      const cell = row.cells[column], raw = cell.dataset.v ?? cell.textContent.trim();
      return raw !== "" && !Number.isNaN(Number(raw)) ? Number(raw) : raw;
    };
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : head.classList.contains("n") || column === 4;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a, column), y = value(b, column);
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return down ? -order : order;
      });
      body.append(...rows);
    }));
  }

  const buckets = [...document.querySelectorAll(".bucket")], fits = [];
  buckets.forEach((bucket) => {
    const data = JSON.parse(bucket.querySelector(".data").textContent);
    hover(bucket, data);
    fits.push(zoom(bucket));
    search(bucket, data);
    bucket.querySelectorAll(".sortable").forEach(sorting);
  });

  const tabs = [...document.querySelectorAll("[data-tab]")];
  const select = (index) => {
    buckets.forEach((bucket, i) => { bucket.hidden = i !== index; });
    tabs.forEach((tab, i) => tab.setAttribute("aria-current", i === index));
    fits[index]();
  };
  if (tabs.length) {
    tabs.forEach((tab, index) => tab.addEventListener("click", (event) => { event.preventDefault(); select(index); }));
    select(Math.max(0, buckets.findIndex((bucket) => "#" + bucket.id === location.hash)));
  }
})();
