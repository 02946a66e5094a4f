// The parts of ECharts that pages without a relief need.
import { setPlatformAPI, use } from "echarts/core";
import { CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { GridComponent, TooltipComponent } from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

use([CustomChart, LineChart, ScatterChart, GridComponent, TooltipComponent, CanvasRenderer]);

// ECharts takes the width of a Chinese sign for the height of a line. Without a font for it, labels would be cut.
const pen = document.createElement("canvas").getContext("2d");
setPlatformAPI({
  measureText(text, font) {
    if (text === "国") return { width: parseFloat(/([\d.]+)px/.exec(font)?.[1] ?? 12) };
    pen.font = font;
    return pen.measureText(text);
  },
});

export { init } from "echarts/core";
