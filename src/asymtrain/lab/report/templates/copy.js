"use strict";
// A button that copies the code below a heading. Where there is no clipboard to write to, the code is selected instead.
document.querySelectorAll("pre > code").forEach((code) => {
  const button = document.createElement("button");
  const row = document.createElement("p");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: copy with the keyboard";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  });
  row.className = "controls";
  row.append(button);
  code.closest("div").before(row);
});
