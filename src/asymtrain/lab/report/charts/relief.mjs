// With surfaces that can be turned.
import { use } from "echarts/core";
import { SurfaceChart } from "echarts-gl/charts";
import { Grid3DComponent } from "echarts-gl/components";

use([SurfaceChart, Grid3DComponent]);

export * from "./flat.mjs";
