import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipAsync } from "@gfx/zopfli";
import { build } from "esbuild";
import { minify } from "terser";

// echarts-gl names files of ECharts and zrender without the ending that these ask for.
const endings = {
  name: "endings",
  setup({ onResolve }) {
    onResolve({ filter: /^(zrender|echarts)\/lib\// }, ({ path }) =>
      path.endsWith(".js") ? undefined : { path: fileURLToPath(new URL(`node_modules/${path}.js`, import.meta.url)) });
  },
};

// What no figure here uses, and ECharts names all the same: other languages and themes, clocks, patterns, old options
const SPARED = {
  "i18n/langZH theme/dark": "export default {};",
  "chart/helper/LargeSymbolDraw component/tooltip/TooltipRichContent": "export default class {}",
  "scale/Time": "export default class {} export const calcNiceForTimeScale = null;",
  "preprocessor/backwardCompat": "export default () => {};",
  "util/decal": "export const createOrUpdatePatternFromDecal = () => null;",
};
const spared = {
  name: "spared",
  setup({ onLoad }) {
    for (const [files, contents] of Object.entries(SPARED))
      onLoad({ filter: new RegExp(`echarts/lib/(${files.replaceAll(" ", "|")})\\.js$`) }, () => ({ contents }));
  },
};

for (const name of ["flat", "relief"]) {
  const { outputFiles } = await build({
    entryPoints: [`${name}.mjs`], bundle: true, minify: true, write: false, format: "iife", globalName: "echarts",
    legalComments: "none", define: { "process.env.NODE_ENV": '"production"' }, plugins: [endings, spared],
  });
  // Both take seconds, once; every page is a tenth smaller for it.
  const { code } = await minify(outputFiles[0].text, { ecma: 2020, compress: { passes: 3 } });
  writeFileSync(`${name}.js.gz`, await gzipAsync(Buffer.from(code), { numiterations: 15 }));
}
