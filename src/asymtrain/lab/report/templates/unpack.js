"use strict";
// What is large comes compressed, in letters of base 85, and is unpacked when it is needed.
const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
const VALUES = new Map([...LETTERS].map((letter, value) => [letter, value]));

function bytesOf(text) {
  const missing = (5 - text.length % 5) % 5;
  const view = new DataView(new ArrayBuffer((text.length + missing) / 5 * 4));
  for (let at = 0; at < text.length; at += 5) {
    let word = 0;
    for (let i = at; i < at + 5; i += 1) word = word * 85 + (i < text.length ? VALUES.get(text[i]) : 84);
    view.setUint32(at / 5 * 4, word);
  }
  return view.buffer.slice(0, view.byteLength - missing);
}

async function unpacked(element) {
  return new Response(new Blob([bytesOf(element.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function run(id) {
  const script = document.createElement("script");
  script.textContent = await unpacked(document.getElementById(id));
  document.head.append(script);
}
