import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

// echarts-gl names files of ECharts and zrender without the ending that these ask for.
const endings = {
  name: "endings",
  setup({ onResolve }) {
    onResolve({ filter: /^(zrender|echarts)\/lib\// }, ({ path }) =>
      path.endsWith(".js") ? undefined : { path: fileURLToPath(new URL(`node_modules/${path}.js`, import.meta.url)) });
  },
};

for (const name of ["flat", "relief"]) {
  const { outputFiles } = await build({
    entryPoints: [`${name}.mjs`], bundle: true, minify: true, write: false, format: "iife", globalName: "echarts",
    legalComments: "none", define: { "process.env.NODE_ENV": '"production"' }, plugins: [endings],
  });
  writeFileSync(`${name}.js.gz`, gzipSync(outputFiles[0].contents, { level: 9 }));
}
