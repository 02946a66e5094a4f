"use strict";
// The page asks for itself again and again. Parts that have changed are replaced, of figures the values alone; the rest is
// not touched, so that nothing flickers and a reader keeps the place.
(() => {
  const main = document.querySelector("main");
  const told = document.getElementById("told");
  const nameOf = (part) => part.getAttribute("aria-labelledby") || part.localName;
  const partsOf = (page) => new Map([...page.querySelector("main").children].map((part) => [nameOf(part), part]));
  const plotsOf = (part) => [...part.querySelectorAll(".plot")];
  let version = '"@version@"';
  let known = null; // the parts as they came: those of the page itself are changed by its scripts

  function frame(part) {
    const copy = part.cloneNode(true);
    plotsOf(copy).forEach((plot) => plot.replaceChildren());
    return copy.outerHTML;
  }

  function replace(shown, part, previous) {
    const fresh = document.importNode(part, true);
    const scrolled = shown ? [...shown.querySelectorAll(".scroll")].map((box) => box.scrollLeft) : [];
    const opened = shown ? [...shown.querySelectorAll("details")].map((box) => box.open) : [];
    if (shown) shown.replaceWith(fresh);
    else if (previous) previous.after(fresh);
    else main.prepend(fresh);
    [...fresh.querySelectorAll(".scroll")].forEach((box, i) => { box.scrollLeft = scrolled[i] || 0; });
    [...fresh.querySelectorAll("details")].forEach((box, i) => { box.open = opened[i] || false; });
    fresh.dispatchEvent(new Event("fresh", { bubbles: true }));
    return fresh;
  }

  function refill(plot, fresh) {
    plot.querySelector(".static").replaceChildren(...document.importNode(fresh.querySelector(".static"), true).childNodes);
    plot.querySelector(".values").textContent = fresh.querySelector(".values").textContent;
    plot.dispatchEvent(new Event("fresh", { bubbles: true }));
  }

  function update(page) {
    if (page.getElementById("charts") && !document.getElementById("charts")) location.reload(); // its first figures
    const parts = partsOf(page);
    const shown = partsOf(document);
    let previous = null;
    for (const [name, part] of parts) {
      const before = known && known.get(name);
      let node = shown.get(name);
      if (!node || !before || frame(before) !== frame(part)) {
        node = replace(node, part, previous);
      } else {
        const [old, here] = [plotsOf(before), plotsOf(node)];
        plotsOf(part).forEach((plot, i) => { if (plot.innerHTML !== old[i].innerHTML) refill(here[i], plot); });
      }
      shown.delete(name);
      previous = node;
    }
    for (const gone of shown.values()) gone.remove();
    document.title = page.title;
    known = parts;
  }

  async function ask() {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", headers: known ? { "If-None-Match": version } : {} });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!known && answer.headers.get("ETag") === version) known = partsOf(page);
        else update(page);
        version = answer.headers.get("ETag");
      }
      told.textContent = answer.ok || answer.status === 304 ? "Live" : `Not up to date: ${await answer.text()}`;
    } catch {
      told.textContent = "No longer live: the program that showed this page has ended.";
    }
  }

  async function watch() {
    await ask();
    setTimeout(watch, {{ pause }});
  }
  watch();
  addEventListener("visibilitychange", ask);
})();
