"use strict";
// Tables that can be sorted by a column: a click sorts downwards, the next upwards, the third as it was.
function sortable(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  if (rows.length < 2) return;

  // A cell may span several columns.
  const cellAt = (row, column) => {
    let at = 0;
    return [...row.cells].find((cell) => (at += cell.colSpan) > column);
  };
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const head = heads[column];
    if (head.matches(".right")) {
      const rank = (head.dataset.order || "").split(" ")[rows.indexOf(row)];
      return rank === undefined || rank === "-" || rank === "" ? null : Number(rank);
    }
    const words = cellAt(row, column).textContent.trim();
    return cellAt(row, column).matches(".missing") || words === "—" ? null : words;
  };
  // What has no value stands last either way.
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    const first = head.matches(".right") ? "descending" : "ascending";
    const second = first === "descending" ? "ascending" : "descending";
    button.addEventListener("click", () => {
      const next = { [first]: second, [second]: "" }[head.getAttribute("aria-sort")] ?? first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      const sorted = next ? [...rows].sort((a, b) => compare(key(a, column), key(b, column), sign)) : rows;
      body.append(...sorted);
    });
  });
}
document.querySelectorAll("table").forEach(sortable);
// New parts of a page that is being watched (watch.js)
document.addEventListener("fresh", ({ target }) => target.querySelectorAll("table").forEach(sortable));
