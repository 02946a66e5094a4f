"""Recompute tables of docs/practice.md, and those of docs/findings.md, from the rows in results/practice-*.

    python results/recompute_practice.py [PRACTICE [FINDINGS]]

It reads the Parquet files with pandas and imports nothing of asymtrain. A model's configuration, and the change that
tunes its baseline, are those with the best validation accuracy, as the protocol says; differences are taken seed by
seed. Of docs/practice.md it checks the table of tuned baselines, and it prints both tables of docs/findings.md, one of
them with Holm's correction over every comparison of every block. It exits with 1 where a page and the rows differ, in a
number or in which rows there are.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).parents[1]
PATHS = [ROOT / "docs" / "practice.md", ROOT / "docs" / "findings.md"]
PAGE, FINDINGS = [*map(Path, sys.argv[1:]), *PATHS[len(sys.argv) - 1 :]]
MODELS = {  # the four that were tuned come first
    "mlp": "MLP",
    "timm:vit_tiny_patch16_224": "ViT-Tiny",
    "timm:swin_tiny_patch4_window7_224": "Swin",
    "asymtrain.lab.practice.models:mixer": "MLP-Mixer",
    "vit": "ViT",
    "asymtrain.lab.practice.models:resnet18": "ResNet-18",
    "asymtrain.lab.practice.models:plain18": "Plain-18",
    "cnn": "CNN",
    "asymtrain.lab.practice.models:convnext": "ConvNeXt",
}
# What specs leave out.
DEFAULTS = {"arch": "mlp", "arch_options": "", "epochs": 10, "redundancy": 1, "alpha": 1.0, "objective": "sigmoid"}
DEFAULTS |= {"alpha_schedule": "constant", "branch_bias": "none", "places": "all", "branch_labels": "true"}
DEFAULTS |= {"branch_weights": "trained", "signal": "gradient", "learning_rate": 1e-3, "weight_decay": 0.01}
DEFAULTS |= {"label_smoothing": 0.0, "seed": 42}
RECIPE = ["learning_rate", "weight_decay", "label_smoothing", "arch_options", "warmup_share"]
BRANCHES = ["redundancy", "alpha", "alpha_schedule", "objective", "branch_bias", "places"]
CONTROLS = {
    "selected configuration": {},
    "random labels": {"branch_labels": "random"},
    "frozen branches": {"branch_weights": "frozen"},
    "detached": {"signal": "detached"},
    "noise": {"signal": "noise"},
}
TUNED = ["tuned baseline", "tuned, with branches", "selected configuration"]  # columns of the page's table
TRUE = {name: DEFAULTS[name] for change in CONTROLS.values() for name in change}
OUTCOMES = ["validation_accuracy", "test_accuracy", "calibration_error"]


def load(name):
    """One kind of rows, of all folders."""
    return pd.concat(map(pd.read_parquet, sorted(ROOT.glob(f"results/practice-*/{name}.parquet"))), ignore_index=True)


specs = load("specs").drop_duplicates("id")
rows = pd.DataFrame([DEFAULTS | json.loads(spec) for spec in specs.spec], index=specs.id)
last = load("epochs").sort_values("epoch").groupby("spec_id").last()
rows = rows.join(last[OUTCOMES[:2]]).join(load("runs").groupby("spec_id").calibration_error.last())
rows["arch_options"] = rows.arch_options.map(str)
rows["warmup_share"] = (rows.warmup / rows.epochs).round(6)
rows["later"] = rows.seed >= 47  # the part `seeds` has fifteen of its own, and no other part has them
final, tried = rows[rows.test == "every"], rows[rows.test == "never"]
MAIN = {"dataset": "cifar100", "epochs": 30, "augmentation": "flip_shift", "later": False}
main = final[(final[list(MAIN)] == pd.Series(MAIN)).all(axis=1)]


def having(frame, settings, outcome="test_accuracy"):
    """The rows with these settings, in percent by seed."""
    for name, value in settings.items():
        frame = frame[frame[name] == value]
    assert frame.seed.is_unique
    return 100 * frame.set_index("seed")[outcome]


def ends(points):
    """Mean and half of the 95% interval."""
    return points.mean(), stats.t.ppf(0.975, len(points) - 1) * points.sem()


def difference(one, other):
    """Mean over the seeds that both have, with its 95% interval, as the page writes it; None without seeds."""
    points = (one - other).dropna()
    if points.empty:
        return None
    mean, half = ends(points)
    return f"{mean:+.2f}  {mean - half:+.2f} to {mean + half:+.2f}"


tuned, chosen = {}, {}
every = {}  # comparison of two means by paired t-test: (family, model, arm) -> differences
for arch, title in MODELS.items():
    runs, trials, none = main[main.arch == arch], tried[tried.arch == arch], {"redundancy": 0}
    usual = dict(zip(RECIPE, trials[RECIPE].mode().iloc[0], strict=True)) | {"warmup_share": 0.1}
    means = trials[trials.redundancy == 0].groupby(RECIPE).validation_accuracy.mean()
    best = dict(zip(RECIPE, means.idxmax(), strict=True))
    means = trials[trials.redundancy > 0].groupby(BRANCHES).validation_accuracy.mean()
    branches = dict(zip(BRANCHES, means.idxmax(), strict=True))
    plain, baseline, selected = (having(runs, kind) for kind in (usual | none, best | none, usual | branches | TRUE))
    if len(trials[trials.redundancy == 0].groupby(RECIPE)) > 1:
        pairs = (baseline, plain), (having(runs, best | branches | TRUE), baseline), (selected, baseline)
        tuned |= {(name, title): difference(*pair) for name, pair in zip(TUNED, pairs, strict=True)}
        every["tuned baselines", title, "tuned baseline"] = baseline - plain
        every["tuned baselines", title, "selected configuration"] = selected - baseline
    errors = (having(runs, kind, "calibration_error") for kind in (usual | branches | TRUE, usual | none))
    every["calibration", title, "selected configuration"] = pd.Series.sub(*errors)
    chosen[arch] = usual, branches
# Every arm against the runs without branches that differ from it in nothing else
arm = [*BRANCHES, *TRUE]
others = [name for name in rows if name not in (*arm, *OUTCOMES, "seed", "cosine_every")]
for values, same in final.groupby(others, dropna=False):
    about = dict(zip(others, values, strict=True))
    without, title = having(same, {"redundancy": 0}), MODELS.get(about["arch"], about["arch"])
    usual, branches = chosen.get(about["arch"], ({}, {}))
    is_main = same.index.isin(main.index).all()
    for values, members in same[same.redundancy > 0].groupby(arm):
        settings = dict(zip(arm, values, strict=True))
        changed = [name for name, change in CONTROLS.items() if settings == branches | TRUE | change]
        family = "other configurations"
        if not is_main:
            family = "other data, lengths, recipes and seeds"
            changed = [", ".join(str(about[name]) for name in (*MAIN, "per_class") if name in about), str(values)]
        elif (same[RECIPE] != pd.Series(usual)).any(axis=None):
            family = "selected configuration, tuned recipe"
        elif changed:
            family = "selected configuration" if changed == ["selected configuration"] else "controls"
        every[family, title, ", ".join(changed or [str(values)])] = having(members, {}) - without

p_values = pd.Series({key: stats.ttest_1samp(points.dropna(), 0).pvalue for key, points in every.items()}).sort_values()
holm = (p_values * np.arange(len(p_values), 0, -1)).cummax().clip(upper=1)


def cell(family, title, arm):
    """A difference with half its interval; a star where it is clear after the correction over all comparisons."""
    if (family, title, arm) not in every:
        return ""
    mean, half = ends(every[family, title, arm].dropna())
    return f"{mean:+.2f} ± {half:.2f}{'*' if holm[family, title, arm] < 0.05 else ' '}"


COLUMNS = {"Selected": ("selected configuration", "selected configuration")}
COLUMNS |= {"Tuned recipe": ("selected configuration, tuned recipe", "selected configuration")}
COLUMNS |= {name.capitalize(): ("controls", name) for name in list(CONTROLS)[1:]}
gains = [f"{'Model':9}" + "".join(f"  {name:>15}" for name in COLUMNS)]
for title in MODELS.values():
    cells = (cell(family, title, arm) for family, arm in COLUMNS.values())
    gains.append(f"{title:9}" + "".join(f"  {text:>15}" for text in cells))
counts = [f"{'Comparisons':36}  tests  p < 0.05  after Holm over all"]
families = ["selected configuration", "selected configuration, tuned recipe", "controls", "tuned baselines"]
families += ["other configurations", "calibration", "other data, lengths, recipes and seeds", "all"]
for family in families:
    own = [key for key in every if family in ("all", key[0])]
    if not own:
        continue
    left = (sum(values[own] < 0.05) for values in (p_values, holm))
    counts.append("{:36}  {:5}  {:8}  {:19}".format(family, len(own), *left))

pages, wrong = [path.read_text() if path.exists() else "" for path in (PAGE, FINDINGS)], 0
section = pages[0].partition("## A tuned baseline\n")[2].partition("\n## ")[0]
shown = {}
for line in re.findall(r"^\| .*\d.* \|$", section, re.MULTILINE):
    title, *cells = line.strip("| ").split(" | ")
    effects = (re.search(r"(\S+) \((\S+ to \S+)\)$", cell) for cell in cells)
    for name, effect in zip(TUNED, effects, strict=True):
        shown[name, title] = "  ".join(effect.groups())
for key in sorted({*tuned, *shown}):
    same = tuned.get(key) == shown.get(key)
    wrong += not same
    beside = "" if same else f"  THE PAGE: {shown.get(key)}"
    print(f"A tuned baseline  {key[1]:9}  {key[0]:22}  {tuned.get(key)}{beside}")
for table in (gains, counts):
    text = "\n".join(line.rstrip() for line in table)
    print(f"\n{text}")
    if f"```\n{text}\n```\n" not in pages[1]:
        wrong += 1
        print(f"NOT ON THE PAGE {FINDINGS.name}")
print("\nclear by itself, not after the correction:")
for family, title, arm in p_values.index[(p_values < 0.05) & (holm >= 0.05)]:
    mean, half = ends(every[family, title, arm].dropna())
    print(f"{title:9}  {family}, {arm}: {mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})")
print(f"different: {wrong or 'nothing'}")
sys.exit(bool(wrong))
