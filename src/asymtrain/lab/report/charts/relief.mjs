// With surfaces that can be turned.
import { use } from "echarts/core";
import { VisualMapContinuousComponent } from "echarts/components";
import { SurfaceChart } from "echarts-gl/charts";
import { Grid3DComponent } from "echarts-gl/components";

use([SurfaceChart, Grid3DComponent, VisualMapContinuousComponent]);

export * from "./flat.mjs";
