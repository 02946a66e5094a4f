"""Recompute the tables of tuned baselines and of controls in docs/practice.md from the rows in results/practice-*.

    python results/recompute_practice.py [PAGE]

It reads the Parquet files with pandas and imports nothing of asymtrain. The change that tunes a baseline is the one
with the best validation accuracy, as the protocol says; differences are taken seed by seed. It exits with 1 where the
page's tables and the rows differ, in a number or in which rows there are.
"""

import json
import re
import sys
from pathlib import Path

import pandas as pd
from scipy import stats

ROOT = Path(__file__).parents[1]
PAGE = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "practice.md"
MODELS = {
    "mlp": "MLP",
    "timm:vit_tiny_patch16_224": "ViT-Tiny",
    "timm:swin_tiny_patch4_window7_224": "Swin",
    "asymtrain.lab.practice.models:mixer": "MLP-Mixer",
}
# What specs leave out.
DEFAULTS = {"arch": "mlp", "arch_options": "", "epochs": 10, "redundancy": 1, "alpha": 1.0, "objective": "sigmoid"}
DEFAULTS |= {"alpha_schedule": "constant", "branch_bias": "none", "places": "all", "branch_labels": "true"}
DEFAULTS |= {"branch_weights": "trained", "signal": "gradient", "learning_rate": 1e-3, "weight_decay": 0.01}
DEFAULTS |= {"label_smoothing": 0.0}
RECIPE = ["learning_rate", "weight_decay", "label_smoothing", "arch_options", "warmup_share"]
BRANCHES = ["redundancy", "alpha", "alpha_schedule", "objective", "branch_bias", "places"]
CONTROLS = {
    "selected form": {},
    "random labels": {"branch_labels": "random"},
    "frozen branches": {"branch_weights": "frozen"},
    "detached": {"signal": "detached"},
    "noise": {"signal": "noise"},
}


def load(name):
    """One kind of rows, of all folders."""
    return pd.concat(map(pd.read_parquet, sorted(ROOT.glob(f"results/practice-*/{name}.parquet"))), ignore_index=True)


specs = load("specs").drop_duplicates("id")
rows = pd.DataFrame([DEFAULTS | json.loads(spec) for spec in specs.spec], index=specs.id)
rows = rows.join(
    load("epochs").sort_values("epoch").groupby("spec_id").last()[["validation_accuracy", "test_accuracy"]]
)
rows["arch_options"] = rows.arch_options.map(str)
rows["warmup_share"] = (rows.warmup / rows.epochs).round(6)
final, tried = rows[rows.test == "every"], rows[rows.test == "never"]


def having(frame, settings):
    """The rows with these settings, by seed."""
    for name, value in settings.items():
        frame = frame[frame[name] == value]
    assert frame.seed.is_unique
    return 100 * frame.set_index("seed").test_accuracy


def difference(one, other):
    """Mean over the seeds that both have, with its 95% interval, as the page writes it; None without seeds."""
    points = (one - other).dropna()
    if points.empty:
        return None
    half = stats.t.ppf(0.975, len(points) - 1) * points.sem()
    return f"{points.mean():+.2f}  {points.mean() - half:+.2f} to {points.mean() + half:+.2f}  {len(points)}"


tuned, signal = {}, {}
for arch, title in MODELS.items():
    runs, trials = final[final.arch == arch], tried[(tried.arch == arch) & (tried.redundancy == 0)]
    means = trials.groupby(RECIPE).validation_accuracy.mean()
    usual = dict(zip(RECIPE, trials[RECIPE].mode().iloc[0], strict=True)) | {"warmup_share": 0.1}
    best = dict(zip(RECIPE, means.idxmax(), strict=True))
    none, true = {"redundancy": 0}, {name: DEFAULTS[name] for name in ("branch_labels", "branch_weights", "signal")}
    on_top = runs[(runs[RECIPE] == pd.Series(best)).all(axis=1) & (runs.redundancy > 0)]
    branches = dict(zip(BRANCHES, on_top[BRANCHES].iloc[0], strict=True)) | true
    plain, baseline, selected = (having(runs, kind) for kind in (usual | none, best | none, usual | branches))
    tuned["tuned, with branches", title] = difference(having(runs, best | branches), baseline)
    tuned["tuned baseline", title] = difference(baseline, plain)
    tuned["selected form", title] = difference(selected, baseline)
    for name, change in CONTROLS.items():
        signal[name, title] = difference(having(runs, usual | branches | change), plain)
controlled = {title for name, title in signal if name != "selected form" and signal[name, title]}

page, wrong = PAGE.read_text(), 0
for heading, computed in {
    "A tuned baseline": tuned,
    "What carries the effect": {key: text for key, text in signal.items() if text and key[1] in controlled},
}.items():
    table = re.search(rf"^```\n{heading}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
    shown = {}
    for line in table.splitlines():
        # A cell that is too long goes on in the lines below; names of arms are told by their first word.
        if found := re.match(r"(\S+) {2,}(\w+,?).*? {2,}([-+]\d+\.\d\d) {2}(\S+ to \S+) .* (\d+)$", line):
            model, arm, points, ends, seeds = found.groups()
            names = [name for name, title in computed if title == model and name.split()[0] == arm]
            shown[names[0] if names else arm, model] = f"{points}  {ends}  {seeds}"
    for key in sorted({*computed, *shown}):
        same = computed.get(key) == shown.get(key)
        wrong += not same
        beside = "" if same else f"  THE PAGE: {shown.get(key)}"
        print(f"{heading:24}  {key[1]:9}  {key[0]:20}  {computed.get(key)}{beside}")
print(f"different: {wrong or 'nothing'}")
sys.exit(bool(wrong))
