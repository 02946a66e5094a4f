"use strict";
(() => {
  const NUMBER = ':is(td, dd, .facts) a[href^="#_"]'; // leads to its specs
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  // What the buttons copy is unpacked when one is pressed.
  let texts = null;
  const told = document.getElementById("told");
  const behind = document.getElementById("behind");

  // What works with this script alone is hidden until it runs.
  all(".filters").forEach((element) => { element.hidden = false; });

  let timer;
  function tell(words) {
    told.textContent = words;
    clearTimeout(timer);
    timer = setTimeout(() => { told.textContent = ""; }, 2500);
  }

  // The clipboard interface is not there in every browser for a page that was opened from a file.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  all("[data-formats]").forEach((node) => {
    const table = node.dataset.formats;
    node.append("Copy as", ...FORMATS.flatMap(([ending, words]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(words);
      button.addEventListener("click", () => take(table, ending, words));
      return [" ", button];
    }));
  });

  async function take(table, ending, words) {
    texts ??= JSON.parse(await unpacked(document.getElementById("texts")));
    const done = await copy(texts[ending][table]);
    tell(done ? `Copied as ${words}` : `Not copied: take the file .${ending} beside this page`);
  }

  // From the page itself, so that it also works where the page has been sent without its files.
  all(".save").forEach((link) => link.addEventListener("click", () => {
    const svg = link.closest("figure").querySelector(".static svg");
    const blob = new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
    link.href = URL.createObjectURL(blob);
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }));

  all(".filters button").forEach((button) => button.addEventListener("click", () => {
    all(".filters button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    const tag = button.dataset.tag;
    all(".claim").forEach((claim) => { claim.hidden = Boolean(tag) && claim.dataset.tag !== tag; });
  }));

  // Thousands of specs come packed, and are put in their place as soon as the page is there.
  const listed = Promise.all(all(".listed").map(async (script) => {
    script.insertAdjacentHTML("afterend", JSON.parse(await unpacked(script)));
  }));

  // Tables come a second time, with their links and with the rows of all readings: compressed they take little room.
  const filled = (async () => {
    const boxes = all(".table .scroll");
    const whole = document.createElement("template");
    whole.innerHTML = JSON.parse(await unpacked(document.querySelector(".tables")));
    [...whole.content.children].forEach((table, i) => {
      boxes[i].replaceChildren(table);
      link(table);
      const others = otherReadings(table);
      const absent = all("tbody tr", table).filter((row) =>
        !others.includes(row) && row.querySelector(".missing") && !row.querySelector(NUMBER));
      fold(table, others, "row", " of other readings");
      fold(table, absent, "missing row");
      table.parentElement.dispatchEvent(new Event("fresh", { bubbles: true }));
    });
  })();

  // In a row, numbers from the same specs stand side by side, and the first of them has the link.
  function link(table) {
    const heads = table.tHead.rows[0].cells;
    for (const row of table.tBodies[0].rows) {
      let [address, at] = ["", 0];
      for (const cell of row.cells) {
        const first = cell.querySelector("a");
        const others = heads[at].matches(".left, .papers");
        at += cell.colSpan;
        if (first) address = first.getAttribute("href");
        else if (address && !others && !cell.matches(".missing, .apart")) {
          const own = document.createElement("a");
          own.href = address;
          own.append(...cell.childNodes);
          cell.append(own);
        }
      }
    }
  }

  // Rows of readings other than the primary one, where that has any
  function otherReadings(table) {
    const [name, primary] = READING;
    const at = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent.trim() === name);
    const rows = [...table.tBodies[0].rows];
    const others = at < 0 ? [] : rows.filter((row) => row.cells[at].textContent.trim() !== primary);
    return others.length < rows.length ? others : [];
  }

  // Rows of other readings, and those without a number of ours, are folded.
  function fold(table, rows, words, more = "") {
    if (!rows.length) return;
    const button = document.createElement("button");
    const set = (folded) => {
      rows.forEach((row) => { row.hidden = folded; });
      button.setAttribute("aria-expanded", String(!folded));
      button.textContent = `${folded ? "Show" : "Hide"} ${rows.length} ${words}${rows.length > 1 ? "s" : ""}${more}`;
    };
    button.type = "button";
    button.className = "fold";
    button.addEventListener("click", () => set(!rows[0].hidden));
    table.closest(".scroll").after(button);
    set(true);
    addEventListener("beforeprint", () => set(false));
  }
  addEventListener("beforeprint", () => all("details.table").forEach((one) => { one.open = true; }));

  async function reveal(hash) {
    await Promise.all([filled, listed]);
    const target = hash.length > 1 && document.getElementById(hash.slice(1));
    for (let one = target && target.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
    if (target && target.hidden) document.querySelector(".filters button").click();  // a claim that is filtered away
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", () => reveal(location.hash));
  reveal(location.hash);

  let opener = null;
  function close() {
    if (behind.hidden) return;
    behind.hidden = true;
    if (behind.contains(document.activeElement)) opener.focus();
  }

  // A setting, its fields, and its specs or those of them that a set names
  function part(listing, specs) {
    const box = document.createElement("div");
    const to = document.createElement("a");
    to.href = `#${listing.id}`;
    to.append(listing.querySelector("b").textContent);
    box.append(to, listing.querySelector("i").cloneNode(true), specs.cloneNode(true));
    return box;
  }

  async function show(link) {
    await listed;
    const target = document.getElementById(link.hash.slice(1));
    const named = all("p", target).map((line) => {
      const listing = document.getElementById(line.querySelector("a").hash.slice(1));
      return part(listing, line.nextElementSibling?.matches("ul") ? line.nextElementSibling : listing.querySelector("ul"));
    });
    const parts = named.length ? named : [part(target, target.querySelector("ul"))];
    const count = parts.flatMap((box) => all("li", box)).length;
    const title = document.createElement("h4");
    title.textContent = `${link.textContent}: from ${count} spec${count === 1 ? "" : "s"}`;
    behind.replaceChildren(title, ...parts);
    behind.hidden = false;
    const box = link.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - behind.offsetWidth - 16);
    behind.style.left = `${Math.max(16, left) + scrollX}px`;
    behind.style.top = `${box.bottom + 6 + scrollY}px`;
    opener = link;
    behind.focus({ preventScroll: true });
  }

  addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (link && link.matches(NUMBER)) {
      event.preventDefault();
      if (!behind.hidden && opener === link) close(); else show(link);
    } else if (!behind.contains(event.target) || link) {
      behind.hidden = true;
      if (link && link.hash && link.getAttribute("href").startsWith("#")) reveal(link.hash);
    }
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
})();
