"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  // What the buttons copy is unpacked when one is pressed.
  let texts = null;
  async function unpack() {
    const packed = atob(document.getElementById("texts").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
  const told = document.getElementById("told");
  const behind = document.getElementById("behind");

  // What works with this script alone is hidden until it runs.
  all(".filters, .copy[hidden]").forEach((element) => { element.hidden = false; });

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

  all("[data-as]").forEach((button) => button.addEventListener("click", async () => {
    texts ??= await unpack();
    const done = await copy(texts[button.dataset.table][button.dataset.as]);
    tell(done ? `Copied as ${button.textContent}` : `Not copied: take the file .${button.dataset.as} beside this page`);
  }));

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
    all(".claim").forEach((claim) => { claim.hidden = Boolean(tag) && !claim.dataset.tags.split(" ").includes(tag); });
  }));

  // Rows without a number of ours are folded; without this script they are there.
  all(".table table").forEach((table) => {
    const absent = all("tbody tr", table).filter((row) => row.querySelector(".missing") && !row.querySelector(".number"));
    if (!absent.length) return;
    const button = document.createElement("button");
    const fold = (folded) => {
      absent.forEach((row) => { row.hidden = folded; });
      button.setAttribute("aria-expanded", String(!folded));
      button.textContent = `${folded ? "Show" : "Hide"} ${absent.length} missing row${absent.length > 1 ? "s" : ""}`;
    };
    button.type = "button";
    button.className = "fold";
    button.addEventListener("click", () => fold(!absent[0].hidden));
    table.closest(".scroll").after(button);
    fold(true);
    addEventListener("beforeprint", () => fold(false));
  });

  function reveal(hash) {
    const target = hash.length > 1 && document.getElementById(hash.slice(1));
    for (let one = target && target.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
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

  function show(link) {
    const set = document.getElementById(link.hash.slice(1)).cloneNode(true);
    all("div", set).forEach((part) => {
      const listing = document.querySelector(part.querySelector("a").hash);
      part.querySelector("a").after(listing.querySelector(".fields").cloneNode(true));
      part.querySelector(".whole")?.replaceWith(...all("code", listing).flatMap((code) => {
        const spec = document.createElement("a");
        spec.href = `#spec-${code.textContent}`;
        spec.append(code.cloneNode(true));
        return [spec, " "];
      }));
    });
    const count = set.querySelectorAll("code").length;
    const title = document.createElement("h4");
    title.textContent = `${link.textContent}: from ${count} spec${count === 1 ? "" : "s"}`;
    behind.replaceChildren(title, ...set.childNodes);
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
    if (link && link.matches(".number")) {
      event.preventDefault();
      if (!behind.hidden && opener === link) close(); else show(link);
    } else if (!behind.contains(event.target) || link) {
      behind.hidden = true;
      if (link && link.hash && link.getAttribute("href").startsWith("#")) reveal(link.hash);
    }
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
})();
